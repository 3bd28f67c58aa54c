"""`autoshard` needs none of alpa, ray, flax, numba and pulp, and changes nothing in the modules that it builds on."""

import subprocess
import sys
import textwrap
from pathlib import Path

# As in an environment that lacks them: each import of them fails.
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("alpa", "ray", "flax", "numba", "pulp", "optax", "alpa_on_jax"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""

PLANNED = """
import jax, jax.numpy as jnp, numpy as np
from alpa_cfp import PlanOptions, autoshard
mesh = jax.make_mesh((2, 4), ("data", "model"))
step = lambda x, w: jnp.tanh(x @ w) @ w.T
x, w = jnp.arange(128.0).reshape(8, 16) / 128, jnp.arange(512.0).reshape(16, 32) / 512
plan = autoshard(step, mesh, x, w, option=PlanOptions(costs="estimate", progress=False))
np.testing.assert_allclose(plan.jit(step)(x, w), jax.jit(step)(x, w), rtol=1e-5)
"""

WATCHED = """
import types, jax, jax.numpy, jax.core, flax, flax.linen, optax, numpy
def names():
    return {
        (module.__name__, name): id(value)
        for module in (jax, jax.numpy, jax.core, jax.lax, jax.tree_util, flax, flax.linen, optax, numpy)
        for name, value in vars(module).items()
        if not isinstance(value, types.ModuleType)
    }
before = names()
"""


def run(home: Path, *code: str) -> None:
    flags = "--xla_force_host_platform_device_count=8"
    environment = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "HOME": str(home)}
    text = "\n".join(textwrap.dedent(each) for each in code)
    result = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr


def test_a_program_is_planned_and_run_where_alpa_and_what_it_needs_are_missing(tmp_path: Path) -> None:
    run(tmp_path, WITHOUT, PLANNED)


def test_planning_and_running_a_program_changes_no_attribute_of_jax_flax_optax_or_numpy(tmp_path: Path) -> None:
    run(
        tmp_path,
        WATCHED,
        PLANNED,
        "import sys; assert not {'alpa', 'ray'} & set(sys.modules)",
        "changed = {name for name, value in names().items() if before.get(name, value) != value}",
        "assert not changed, changed",
        "assert not set(before) - set(names())",
        "new = {name for name in set(names()) - set(before) if not name[1].startswith('_')}; assert not new, new",
    )
