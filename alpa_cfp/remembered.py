"""Plans that were made before: the same program, asked for again, needs no search.

Takes a request in words and the profiles that its plan was made from; keeps the plan in a file beside the profile
database. A plan is a function of the program, the mesh, the options and the profiles, so it holds for as long as those
profiles say the same. Invariant: what is remembered is what planning would give again; a file that cannot be read, or
written, is as good as none.
"""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from alpa_cfp.database import ProfileDatabase, ProfileKey
from alpa_cfp.errors import PlanError
from alpa_cfp.plan import Plan

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Memory:
    """The plans beside a database.

    Attributes:
        database: The profiles that they were made from.
        request: Everything but the profiles that a plan depends on.
    """

    database: ProfileDatabase
    request: str

    def recall(self) -> Plan | None:
        """The plan for this request, if there is one, and its profiles are as they were."""
        path = self._path()
        if path is None:
            return None
        try:
            content = json.loads(path.read_text())
            keys = [ProfileKey(**{**key, "mesh_shape": tuple(key["mesh_shape"])}) for key in content["profiles"]]
            if content["state"] != self._state(keys):
                logger.info("CFP: profiles have changed since the plan was made")
                return None
            return Plan.from_json(json.dumps(content["plan"]), str(path))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, PlanError) as error:
            logger.info("CFP: the plan in %s cannot be used: %s", path, error)
            return None

    def keep(self, plan: Plan, keys: Iterable[ProfileKey]) -> None:
        """Keep `plan`, which was made from the profiles of `keys`."""
        path, keys = self._path(), list(dict.fromkeys(keys))
        if path is None:
            return
        fields = [{name: getattr(key, name) for name in ProfileKey.__slots__} for key in keys]
        content = {"plan": json.loads(plan.to_json()), "profiles": fields, "state": self._state(keys)}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as file:
                json.dump(content, file)
            os.replace(file.name, path)
        except OSError as error:
            logger.warning("CFP: the plan cannot be kept in %s: %s", path.parent, error)

    def _path(self) -> Path | None:
        database = self.database.path
        if database is None or self.database.readonly:
            return None
        return (
            database.with_name(f"{database.name}.plans") / f"{hashlib.sha256(self.request.encode()).hexdigest()}.json"
        )

    def _state(self, keys: Iterable[ProfileKey]) -> str:
        """A digest of what the profiles of `keys` say."""
        digest = hashlib.sha256()
        for key in keys:
            profile = self.database.get(key)
            said = None if profile is None else (profile.status, profile.samples_s, profile.temporary_bytes)
            digest.update(repr((key.program, said)).encode())
        return digest.hexdigest()
