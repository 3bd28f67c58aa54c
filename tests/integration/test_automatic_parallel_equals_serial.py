"""Every program that alpa's ILP makes equals the serial run: each model, method, mesh and number of micro-batches."""

import pytest

from integration.parallel import NUM_STEPS, Case, automatic_cases, run
from integration.serial import assert_equal_up_to_rounding, expected_steps, reordered_steps

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("case", automatic_cases(), ids=str)
def test_states_gradients_and_metrics_of_two_steps_equal_the_serial_ones(case: Case) -> None:
    expected = expected_steps(case.model, case.num_micro_batches, NUM_STEPS)
    # Its batch norms take the mean away, so that gradients before them nearly cancel.
    reordered = reordered_steps(case.model, case.num_micro_batches or 1) if case.model == "wide_resnet" else []
    for number, (actual, wanted) in enumerate(zip(run(case).steps, expected, strict=True)):
        assert_equal_up_to_rounding(actual.grads, wanted.grads, [steps[number].grads for steps in reordered])
        assert_equal_up_to_rounding(actual.metrics, wanted.metrics)
        assert_equal_up_to_rounding(actual.state, wanted.state, [steps[number].state for steps in reordered])
