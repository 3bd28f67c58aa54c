"""A training step computes the same after simplification, and what the strategies look at has become canonical."""

import re

import jax
import pytest

from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import MODELS, build
from integration import serial
from unit.alpa_cfp.spmd.simplify.simplified import Simplified, simplified

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=MODELS)
def step(request: pytest.FixtureRequest) -> Simplified:
    model = build(request.param)
    # The fixture compares the results of the step, which are the new state, the loss and the gradients, as whole steps
    # are compared everywhere.
    return simplified(
        train_step(model, jax.value_and_grad), model.state, model.batch, tolerance=serial.RELATIVE_TOLERANCE
    )


def test_a_training_step_has_canonical_dots_only(step):
    assert step.all_dots_canonical


def test_no_matrix_of_a_training_step_is_transposed(step):
    # The dots read the transposed weights, and give the transposed gradients, themselves.
    assert not re.findall(r"stablehlo\.transpose .*dims = \[1, 0\]", step.text)
