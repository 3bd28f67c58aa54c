"""Plans that were made before: the same program, asked for again, needs no analysis and no search.

Takes a request in words and the profiles that its plan was made from; keeps the plan, and the module with the plan
written into it, in a file beside the profile database. Both are functions of the program, the mesh, the options, the
profiles and the planner's own code, so they hold for as long as those stay the same. Invariant: what is remembered is
what planning would give again; a file that cannot be read, or written, is as good as none.
"""

import base64
import functools
import hashlib
import json
import logging
import os
import tempfile
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jaxlib

from alpa_cfp.database import ProfileDatabase, ProfileKey
from alpa_cfp.errors import PlanError
from alpa_cfp.plan.plan import Plan
from alpa_cfp.spmd.module.combiner_limits import CombinerLimits
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlannedModule:
    """A plan, and the module with it written down."""

    plan: Plan
    module: HloModule


@dataclass(frozen=True)
class PlanCache:
    """The plans beside a database.

    Attributes:
        database: The profiles that they were made from.
        module: The module that is planned; not changed.
        request: What else a plan depends on, but for the profiles and the code that makes it.
    """

    database: ProfileDatabase
    module: HloModule
    request: str

    def get(self) -> PlannedModule | None:
        """What was made for this request, if anything was, and its profiles are as they were."""
        path = self._path()
        if path is None:
            return None
        try:
            content = json.loads(path.read_text())
            keys = [ProfileKey(**{**key, "mesh_shape": tuple(key["mesh_shape"])}) for key in content["profiles"]]
            if content["state"] != self._state(keys):
                logger.info("CFP: profiles have changed since the plan was made")
                return None
            plan = Plan.from_json(json.dumps(content["plan"]), str(path))
            return PlannedModule(plan, _annotated(self.module, plan, content["annotated"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, PlanError, zlib.error) as error:
            logger.info("CFP: the plan in %s cannot be used: %s", path, error)
            return None

    def put(self, made: PlannedModule, keys: Iterable[ProfileKey]) -> None:
        """Keep what was made from the profiles of `keys`."""
        path, keys = self._path(), list(dict.fromkeys(keys))
        if path is None:
            return
        fields = [{name: getattr(key, name) for name in ProfileKey.__slots__} for key in keys]
        content = {
            "plan": json.loads(made.plan.to_json()),
            "annotated": _to_json(made.module),
            "profiles": fields,
            "state": self._state(keys),
        }
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
            logger.info("CFP: plans are not kept: the profile database has no file, or one that is only read")
            return None
        module = self.module
        given = (module.donated, module.aliases, module.input_protos, module.output_protos)
        digest = hashlib.sha256(module.bytecode)
        digest.update(repr((given, self.request, jaxlib.__version__, _code())).encode())
        return database.with_name(f"{database.name}.plans") / f"{digest.hexdigest()}.json"

    def _state(self, keys: Iterable[ProfileKey]) -> str:
        """A digest of what the profiles of `keys` say."""
        digest = hashlib.sha256()
        for key in keys:
            profile = self.database.get(key)
            said = None if profile is None else (profile.status, profile.samples_s, profile.temporary_bytes)
            digest.update(repr((key.program, said)).encode())
        return digest.hexdigest()


def _to_json(module: HloModule) -> dict[str, Any]:
    """What planning has written into a module."""
    shardings = (module.input_shardings or (), module.output_shardings or ())
    return {
        "bytecode": base64.b64encode(zlib.compress(module.bytecode, level=1)).decode(),
        "shardings": [[sharding.to_sdy() for sharding in each] for each in shardings],
        "fixed_outputs": sorted(module.fixed_outputs),
        "propagated": module.propagated,
        "combiner_limits": asdict(module.combiner_limits),
    }


def _annotated(module: HloModule, plan: Plan, content: dict[str, Any]) -> HloModule:
    """`module` with what `_to_json` says."""
    mesh = LogicalMesh(plan.mesh_shape)
    inputs, outputs = (
        tuple(ArraySharding.from_sdy(mesh, text, len(shape.dims)) for text, shape in zip(texts, shapes, strict=True))
        for texts, shapes in zip(content["shardings"], (module.shape.parameters, module.shape.results), strict=True)
    )
    return replace(
        module,
        bytecode=zlib.decompress(base64.b64decode(content["bytecode"])),
        mesh=mesh,
        input_shardings=inputs,
        output_shardings=outputs,
        fixed_outputs=frozenset(content["fixed_outputs"]),
        solved=True,
        propagated=content["propagated"],
        combiner_limits=CombinerLimits(**content["combiner_limits"]),
    )


@functools.cache
def _code() -> str:
    """A digest of the sources that decide about plans: of another version, or of one that is worked on."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
