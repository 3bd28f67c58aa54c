"""Cache of plans: a program that is planned again with the same inputs needs no analysis and no search.

An entry is a file beside the profile database. It holds the plan and the module annotated with it; its name is a digest
of the program, the mesh, the options and the planner's own code, and it also holds a digest of the profiles that were
read. Invariant: a cached plan is the one that planning would give again. A file that cannot be read or written only
costs a new search.
"""

import base64
import functools
import hashlib
import json
import logging
import os
import tempfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jaxlib

from alpa_cfp.codec import decode, encode
from alpa_cfp.database import ProfileDatabase, ProfileKey
from alpa_cfp.plan.plan import Plan
from alpa_cfp.spmd.ir.shapes import Shape
from alpa_cfp.spmd.module.combiner_limits import CombinerLimits
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlannedModule:
    """A plan, and the module annotated with it."""

    plan: Plan
    module: HloModule


@dataclass(frozen=True, slots=True)
class _Annotations:
    """The changes of planning to a module.

    Attributes:
        bytecode: Compressed, in base 64.
        input_shardings, output_shardings: In Shardy's syntax.
        fixed_outputs, propagated, combiner_limits: As in `HloModule`.
    """

    bytecode: str
    input_shardings: tuple[str, ...]
    output_shardings: tuple[str, ...]
    fixed_outputs: tuple[int, ...]
    propagated: bool
    combiner_limits: CombinerLimits


@dataclass(frozen=True, slots=True)
class _Entry:
    """The content of a file.

    Attributes:
        plan: The plan.
        annotations: The annotations of its module.
        profiles: Keys of the profiles that the plan was made from.
        state: Digest of these profiles at that time.
    """

    plan: Plan
    annotations: _Annotations
    profiles: tuple[ProfileKey, ...]
    state: str


@dataclass(frozen=True)
class PlanCache:
    """The cached plans beside a database.

    Attributes:
        database: The profiles that plans are made from.
        module: The module that is planned; not changed.
        request: Everything else that a plan depends on, except the profiles and the code of the planner.
    """

    database: ProfileDatabase
    module: HloModule
    request: str

    def get(self) -> PlannedModule | None:
        """The cached plan of this request; None if there is none, or if its profiles have changed."""
        path = self._path()
        if path is None:
            return None
        try:
            entry = decode(_Entry, json.loads(path.read_text()))
            if entry.state != self._state(entry.profiles):
                logger.info("CFP: profiles have changed since the plan was made")
                return None
            return PlannedModule(entry.plan, _annotated(self.module, entry.plan, entry.annotations))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, RecursionError, zlib.error) as error:
            logger.info("CFP: the plan in %s cannot be used: %s", path, error)
            return None

    def put(self, made: PlannedModule, keys: Iterable[ProfileKey]) -> None:
        """Caches a plan that was made from the profiles of `keys`."""
        path, profiles = self._path(), tuple(dict.fromkeys(keys))
        if path is None:
            return
        entry = _Entry(made.plan, _annotations_of(made.module), profiles, self._state(profiles))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as file:
                json.dump(encode(entry), file)
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
        """A digest of the profiles of `keys`."""
        digest = hashlib.sha256()
        for key in keys:
            profile = self.database.get(key)
            values = None if profile is None else (profile.status, profile.samples_s, profile.temporary_bytes)
            digest.update(repr((key.program, values)).encode())
        return digest.hexdigest()


def _annotations_of(module: HloModule) -> _Annotations:
    inputs, outputs = module.input_shardings or (), module.output_shardings or ()
    return _Annotations(
        bytecode=base64.b64encode(zlib.compress(module.bytecode, level=1)).decode(),
        input_shardings=tuple(sharding.to_sdy() for sharding in inputs),
        output_shardings=tuple(sharding.to_sdy() for sharding in outputs),
        fixed_outputs=tuple(sorted(module.fixed_outputs)),
        propagated=module.propagated,
        combiner_limits=module.combiner_limits,
    )


def _annotated(module: HloModule, plan: Plan, annotations: _Annotations) -> HloModule:
    """The inverse of `_annotations_of`, for a `module` that is not annotated."""
    mesh = LogicalMesh(plan.mesh_shape)

    def shardings(texts: Sequence[str], shapes: Sequence[Shape]) -> tuple[ArraySharding, ...]:
        return tuple(
            ArraySharding.from_sdy(mesh, text, len(shape.dims)) for text, shape in zip(texts, shapes, strict=True)
        )

    return replace(
        module,
        bytecode=zlib.decompress(base64.b64decode(annotations.bytecode)),
        mesh=mesh,
        input_shardings=shardings(annotations.input_shardings, module.shape.parameters),
        output_shardings=shardings(annotations.output_shardings, module.shape.results),
        fixed_outputs=frozenset(annotations.fixed_outputs),
        solved=True,
        propagated=annotations.propagated,
        combiner_limits=annotations.combiner_limits,
    )


@functools.cache
def _code() -> str:
    """A digest of this package's sources, because another version may give other plans."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
