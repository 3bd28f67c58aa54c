"""A step is right in whatever form a plan runs it: parts of the forward pass computed again, samples in micro-batches,
and any strategy of each block of that form. Forms and strategies are drawn at random.

With ALPA_CFP_DRAWS=3 in the environment three times as many are drawn.
"""

import os
import random

import jax
import numpy as np
import pytest

from alpa_cfp.candidates.block_candidates import find_block_candidates
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.jit.micro_batch_forms import in_parts
from alpa_cfp.jit.recomputation import recomputing, units_of
from alpa_cfp.jit.tracing import trace
from alpa_cfp.plan.signature import MicroBatches, Recomputed
from alpa_cfp.planner.plan_programs import with_plan
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from alpa_cfp_bench.workloads.sizes import TINY
from integration.serial import assert_equal_up_to_rounding, run_serially
from unit.alpa_cfp.spmd.helpers import load, place

pytestmark = pytest.mark.slow

# Model, mesh, micro-batches, how many combinations.
DRAWS = [
    ("gpt", (2, 4), 1, 5),
    ("gpt", (8,), 2, 2),
    ("mlp", (2, 4), 1, 4),
    ("mlp", (2, 2), 2, 2),
    ("moe", (8,), 1, 3),
    ("conv", (2, 4), 1, 3),
    ("llama", (2, 2), 2, 3),
]
TIMES = int(os.environ.get("ALPA_CFP_DRAWS", "1"))


@pytest.mark.parametrize(
    ("name", "shape", "parts", "seed"),
    [(name, shape, parts, seed) for name, shape, parts, count in DRAWS for seed in range(TIMES * count)],
)
def test_a_step_in_any_form_with_any_strategies_equals_the_serial_one(
    name: str, shape: tuple[int, ...], parts: int, seed: int
) -> None:
    drawn, model, mesh = random.Random(seed), build(name, TINY), LogicalMesh(shape)
    step = in_parts(train_step(model, jax.value_and_grad), MicroBatches(parts, (1,)) if parts > 1 else None)
    traced = trace(step, (model.state, model.batch), {}, (), "cpu")
    units = units_of(traced)
    kept = [(unit, drawn.choice((None, True, False))) for unit in units]
    again = tuple(Recomputed(unit.index, (), keeps, 0) for unit, keeps in kept if keeps is not None)
    program = AnalysedProgram(recomputing(traced, again).module)
    kinds = find_block_candidates(program.subprograms, mesh, {}, split_sums=seed % 2 == 1)
    strategies = [drawn.choice(block.candidates).strategy for block in kinds]
    executable = load(with_plan(program.module, program.blocks, mesh, strategies))
    results = executable.run(place(executable, jax.tree.leaves((model.state, model.batch))))
    expected = run_serially(step, model.state, model.batch)
    actual = jax.tree.unflatten(jax.tree.structure(expected), list(map(np.asarray, results)))
    assert_equal_up_to_rounding(actual, expected)


def test_forms_are_drawn_from_units_of_the_forward_pass() -> None:
    model = build("gpt", TINY)
    traced = trace(train_step(model, jax.value_and_grad), (model.state, model.batch), {}, (), "cpu")
    assert units_of(traced)
