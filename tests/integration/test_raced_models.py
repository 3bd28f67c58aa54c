"""A step of each model that planners are compared on equals the serial run, by CFP, by Alpa's ILP and by hand.

The methods are the bench's own. Models that other files test as they are (gpt, llama, moe, wide_resnet, mlp, unet) are
left out; sizes are small.
"""

import jax
import jax.numpy as jnp
import pytest

from alpa_cfp import CFPOption
from alpa_cfp_bench.case import CFP, ILP, Case
from alpa_cfp_bench.checking import difference, run_serially
from alpa_cfp_bench.methods import misfit, plan_method
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from alpa_cfp_bench.workloads.sizes import Size
from integration.serial import RELATIVE_TOLERANCE

pytestmark = pytest.mark.slow

_SMALL = Size(batch=8, hidden=32, layers=1, sequence=16, vocabulary=64)
_DATA_PARALLEL, _MEGATRON = ("1x8", "data-parallel"), ("1x8", "megatron")
_FEW = (("1x8", CFP), ("2x4", ILP))
_ALL = (("2x4", CFP), ("2x4", ILP), _DATA_PARALLEL, _MEGATRON)
CASES = {
    "mlp_wide": (Size(batch=2), (*_FEW, ("2x4", CFP), _MEGATRON)),
    "gpt_wide": (Size(batch=2, layers=1), (*_FEW, _MEGATRON)),
    "gpt_vocabulary": (Size(batch=8, hidden=16, layers=1, vocabulary=512), (*_FEW, _DATA_PARALLEL, _MEGATRON)),
    "llama_long": (Size(batch=2, layers=1, sequence=64), (*_FEW, _MEGATRON)),
    "t5": (_SMALL, _ALL),
    "vit": (Size(batch=8, layers=1, channels=3), _ALL),
    "lstm": (Size(batch=8, sequence=4), _ALL),
    "gpt_bf16": (_SMALL, (*_FEW, _DATA_PARALLEL, _MEGATRON)),
}


@pytest.mark.parametrize(
    ("model", "size", "mesh", "method"),
    [(model, size, *layout) for model, (size, layouts) in CASES.items() for layout in layouts],
)
def test_a_step_of_a_raced_model_equals_the_serial_run(model: str, size: Size, mesh: str, method: str) -> None:
    case = Case(model, mesh, size)
    assert misfit(case, method) == ""
    built = build(model, size)
    program = plan_method(case, method, CFPOption(costs="estimate", progress=False)).program
    program()
    found = difference(program.loss(), program.state, run_serially(built, None))
    assert found.relative <= max(RELATIVE_TOLERANCE, built.rounding), found


@pytest.mark.parametrize("model", CASES)
def test_a_raced_model_learns(model: str) -> None:
    built = build(model, CASES[model][0])
    step, state = jax.jit(train_step(built, jax.value_and_grad)), built.state
    losses = []
    for _ in range(8):
        state, metrics, grads = step(state, built.batch)
        losses.append(float(metrics["loss"]))
        assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(grads))
    assert losses[-1] < losses[0]
