"""The names that are added to JAX and flax: nothing that exists is replaced, and all can be taken out again."""

import importlib
import os
import pkgutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from types import ModuleType

import pytest

pytestmark = pytest.mark.slow


def printed(code: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code], env=os.environ.copy(), capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


SNAPSHOT = """
import importlib, sys, warnings, jax, flax.linen
from alpa_on_jax import shims
warnings.simplefilter("ignore")
for name in shims._shim_names():
    # What the shims themselves import of JAX and flax is no change to it.
    importlib.import_module(name)
    shims._existing(name.removeprefix("alpa_on_jax."))
def snapshot():
    loaded = {n: m for n, m in sys.modules.items() if n.split(".")[0] in ("jax", "jaxlib", "flax")}
    return {(n, k): id(v) for n, m in loaded.items() for k, v in vars(m).items()}, set(loaded)
before, modules = snapshot()
undo = shims.install()
"""


def test_no_name_that_jax_or_flax_has_is_replaced() -> None:
    code = SNAPSHOT + "after, _ = snapshot(); print([k for k in before if after.get(k) != before[k]])"
    assert printed(code) == "[]"


def test_what_was_added_can_be_taken_out_again_exactly() -> None:
    # Modules that JAX loads lazily when it is asked for a name may stay.
    code = (
        SNAPSHOT
        + """
undo()
for name in shims._shim_names():
    target, shim = name.removeprefix("alpa_on_jax."), importlib.import_module(name)
    if target in sys.modules:
        assert target in modules, target
        for added in getattr(shim, "__all__", ()):
            assert ((target, added) in before) == (added in vars(sys.modules[target])), (target, added)
after, _ = snapshot()
print([key for key in before if after.get(key) != before[key]])
"""
    )
    assert printed(code) == "[]"


def shims_of(tree: ModuleType) -> Iterator[tuple[str, ModuleType]]:
    for info in pkgutil.walk_packages(tree.__path__, tree.__name__ + "."):
        yield info.name.removeprefix("alpa_on_jax."), importlib.import_module(info.name)


@pytest.mark.parametrize("tree", ["jax", "jaxlib", "flax"])
def test_every_name_of_a_shim_can_be_imported_from_the_module_that_it_completes(tree: str) -> None:
    import alpa  # noqa: F401

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for target, shim in shims_of(importlib.import_module(f"alpa_on_jax.{tree}")):
            module = importlib.import_module(target)
            assert module.__name__ == getattr(shim, "ALIAS_OF", module.__name__)
            missing = [name for name in getattr(shim, "__all__", ()) if not hasattr(module, name)]
            assert missing == [], target


def test_old_ways_to_import_from_jax_work_after_alpa() -> None:
    code = """
import alpa
from jax import linear_util, xla
from jax.core import Jaxpr, Literal, Var, gensym, ClosedJaxpr, DropVar
from jax.experimental.maps import FrozenDict
from jax.interpreters import pxla
from jax.interpreters.pxla import Chunked, NoSharding, Replicated, ShardedAxis, ShardingSpec
from jax.lib import xla_bridge, xla_client
from jax._src.lib import xla_extension
import jaxlib.xla_extension, alpa_on_jax.xla_extension, jax
print(jaxlib.xla_extension is xla_extension is alpa_on_jax.xla_extension, jax.tree_map(lambda x: x + 1, [1]))
"""
    assert printed(code) == "True [2]"
