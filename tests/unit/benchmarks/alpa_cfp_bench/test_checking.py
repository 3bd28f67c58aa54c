"""A step that differs from the serial one is found, and what is only rounded is not."""

import math

import jax
import numpy as np
import pytest

from alpa_cfp_bench.checking import CPU_TOLERANCE, Expected, difference, run_serially, tolerance
from alpa_cfp_bench.workloads.models import build
from alpa_cfp_bench.workloads.sizes import TINY

pytestmark = pytest.mark.slow

STATE = {"weight": np.array([1.0, -4.0], np.float32), "step": np.int32(1), "bias": np.zeros(2, np.float32)}
EXPECTED = Expected(2.0, STATE)


def test_equal_values_do_not_differ() -> None:
    assert difference(2.0, STATE, EXPECTED).relative == 0.0


def test_a_difference_is_relative_to_the_largest_entry_of_its_array() -> None:
    found = difference(2.0, {**STATE, "weight": np.array([1.4, -4.0], np.float32)}, EXPECTED)
    assert found.relative == pytest.approx(0.1)
    assert found.where == "weight"


def test_what_should_be_zero_is_measured_by_the_whole_state() -> None:
    rounded = {**STATE, "bias": np.array([1e-7, 0.0], np.float32)}
    assert 0 < difference(2.0, rounded, EXPECTED).relative < CPU_TOLERANCE
    assert difference(2.0, {**STATE, "bias": np.array([0.01, 0.0], np.float32)}, EXPECTED).relative > CPU_TOLERANCE


@pytest.mark.parametrize(
    "change",
    [
        {"weight": np.array([1.0, np.nan], np.float32)},
        {"weight": np.array([1.0], np.float32)},
        {"weight": np.array([1.0, -4.0], np.float16)},
        {"step": np.int32(2)},
    ],
    ids=["no number", "another shape", "another dtype", "another whole number"],
)
def test_what_cannot_be_compared_differs_by_infinitely_much(change: dict[str, np.ndarray]) -> None:
    assert difference(2.0, {**STATE, **change}, EXPECTED).relative == math.inf


def test_an_array_that_is_missing_differs_by_infinitely_much() -> None:
    found = difference(2.0, {"weight": STATE["weight"], "step": STATE["step"]}, EXPECTED)
    assert (found.relative, found.where) == (math.inf, "bias")


def test_the_loss_is_compared_too() -> None:
    assert difference(2.2, STATE, EXPECTED).where == "loss"


def test_micro_batches_give_the_step_of_the_whole_batch() -> None:
    model = build("mlp")
    whole, parts = run_serially(model, None), run_serially(model, 4)
    assert difference(parts.loss, parts.state, whole).relative < CPU_TOLERANCE


def test_a_step_in_bfloat16_may_be_off_by_the_rounding_of_bfloat16_and_not_by_a_missing_sum() -> None:
    model = build("gpt_bf16", TINY)
    whole, parts = run_serially(model, None), run_serially(model, 4)
    rounded = difference(parts.loss, parts.state, whole).relative
    assert CPU_TOLERANCE < rounded < tolerance(model, "cpu")
    # The gradients of a device that lacks those of the others, in the optimizer's momentum.
    lacking = jax.tree.map(lambda leaf: leaf / 8 if leaf.dtype == np.float32 else leaf, whole.state.opt_state)
    found = difference(whole.loss, whole.state.replace(opt_state=lacking), whole)
    assert found.relative > tolerance(model, "cpu")


def test_a_step_in_float32_may_be_off_by_its_platforms_rounding_alone() -> None:
    model = build("mlp")
    assert tolerance(model, "cpu") == CPU_TOLERANCE < tolerance(model, "gpu")
