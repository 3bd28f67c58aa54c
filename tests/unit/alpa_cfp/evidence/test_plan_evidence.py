"""The report of a plan adds up to the prediction, and has every alternative of every block."""

import dataclasses
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AbstractMesh

from alpa_cfp import CFPOption, CFPShardParallel, Plan, autoshard
from alpa_cfp.candidates.block_candidates import distinct
from alpa_cfp.costs import Rates, estimated_s
from alpa_cfp.database import Profile, utc_now
from alpa_cfp.evidence.plan_evidence import PlanEvidence, segments_of, signed, trained_parameters
from alpa_cfp.plan.plan_report import PlanReport
from alpa_cfp.select.candidate_costs import CandidateCosts
from alpa_cfp.select.measured_plan import MeasuredPlan
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.select.profile_source import Samples
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp_bench.workloads.meshes import logical_mesh
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from alpa_cfp_bench.workloads.sizes import TINY
from unit.alpa_cfp.training_steps import (
    MESH,
    measured_numbers,
    measured_program,
    two_layer_blocks,
    two_layer_boundaries,
    two_layer_candidates,
    two_layer_module,
)

# A plan is made once.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("plan_reports")]

NOTHING = {f"{name}_bytes": 0 for name in ("argument", "output", "aliased", "temporary")}
RATES = Rates(flops_per_s=1e9, bytes_per_s=1e9, latency_s=1e-4, link_bytes_per_s=1e8)
ESTIMATE = CFPOption(costs="estimate")


@cache
def gpt_plan(shape: tuple[int, ...]) -> Plan:
    """The estimated plan of the GPT's training step through `autoshard`."""
    model = build("gpt", dataclasses.replace(TINY, layers=3))
    mesh = AbstractMesh(shape, ("data", "model"))
    step = train_step(model, jax.value_and_grad)
    return autoshard(step, mesh, model.state, model.batch, donate_argnums=0, option=ESTIMATE)


def report_of(plan: Plan) -> PlanReport:
    assert plan.account is not None
    return plan.account


def sum_s(report: PlanReport) -> float:
    """Time of the chosen alternatives, the moves and the overhead."""
    times = [report.kinds[block.kind].alternatives[block.chosen].time_s for block in report.blocks]
    moves = [move.time_s for move in report.moves]
    return math.fsum([*(time for time in times if time is not None), *moves, report.overhead_s])


def planned(
    choosing: PlanSearch, choices: Sequence[int], micro_batches: int = 1, tried: Sequence[MeasuredPlan] = ()
) -> PlanEvidence:
    """The evidence of a plan of the two-layer step."""
    return PlanEvidence(
        two_layer_module(), two_layer_blocks(), MESH, two_layer_candidates(), two_layer_boundaries(), choosing,
        micro_batches, MeasuredPlan(choosing.problem.solution(choices)), tried, 0.25, 7,
    )  # fmt: skip


@settings(max_examples=20, deadline=None)
@given(st.data(), st.integers(1, 4))
def test_blocks_moves_and_overhead_add_up_to_what_is_predicted(data: st.DataObject, micro_batches: int) -> None:
    chosen = tuple(data.draw(st.integers(0, len(block.candidates) - 1)) for block in two_layer_candidates())
    choosing = PlanSearch(
        CandidateCosts(two_layer_candidates(), two_layer_boundaries(), RATES, None, 1.5, micro_batches=micro_batches)
    )
    report = planned(choosing, chosen, micro_batches).report()
    assert sum_s(report) == pytest.approx(choosing.problem.time(chosen) + 0.25)


@pytest.mark.parametrize("shape", [(2, 4), (2, 2)])
def test_the_report_of_a_plan_adds_up_to_its_time_and_memory(shape: tuple[int, ...]) -> None:
    plan = gpt_plan(shape)
    blocks = report_of(plan).blocks
    assert sum_s(report_of(plan)) == pytest.approx(plan.predicted_s)
    assert sum(block.state_bytes for block in blocks) == plan.memory.state
    assert sum(block.saved_bytes for block in blocks) == plan.memory.saved
    assert max(block.transient_bytes for block in blocks) == plan.memory.transient


def test_every_block_of_the_program_is_in_the_report_as_it_was_chosen() -> None:
    plan = gpt_plan((2, 4))
    report = report_of(plan)
    assert len(report.blocks) == len(plan.strategies)
    for block, strategy in zip(report.blocks, plan.strategies, strict=True):
        alternative = report.kinds[block.kind].alternatives[block.chosen]
        assert alternative.kept == strategy.state_sharding
        assert [role is None for role in alternative.roles] == [factor is None for factor in strategy.factors]


def test_a_plan_is_kept_with_its_report() -> None:
    plan = gpt_plan((2, 4))
    assert Plan.from_json(plan.to_json()) == plan


def test_the_same_program_has_the_same_report() -> None:
    assert gpt_plan.__wrapped__((2, 2)).to_json() == gpt_plan((2, 2)).to_json()


def test_through_autoshard_blocks_and_weights_have_the_users_names() -> None:
    blocks = report_of(gpt_plan((2, 4))).blocks
    assert len({block.name for block in blocks}) == len(blocks)
    (attention,) = (block for block in blocks if "layer/0/attention/self" in block.name)
    assert any("['qvk_combined']['kernel']" in path for path in attention.weights)


def test_equal_layers_are_repetitions_of_one_segment() -> None:
    blocks = report_of(gpt_plan((2, 4))).blocks
    first, second = (
        next(block for block in blocks if f"layer/{layer}/attention/self" in block.name) for layer in range(2)
    )
    assert first.kind == second.kind
    assert first.segment == second.segment
    assert (first.repetition, second.repetition) == (0, 1)


def test_through_alpa_blocks_have_the_users_names_and_weights_are_numbered() -> None:
    model, option = build("mlp"), CFPOption(costs="estimate")
    method = CFPShardParallel(logical_mesh("2x2"), None, option)
    step: Any = alpa.parallelize(train_step(model, alpa.value_and_grad), method=method)
    step.get_executable(model.state, model.batch)
    report = report_of(option.plans[-1])
    assert sum_s(report) == pytest.approx(option.plans[-1].predicted_s)
    assert [block.name for block in report.blocks] == [f"Dense_{number}" for number in range(4)]
    assert all(block.parameters for block in report.blocks)
    for block in report.blocks:
        assert block.weights == tuple(f"args[{number}]" for number in block.parameters)
    assert report.axis_names == ("axis 0", "axis 1")
    assert {each.source for kind in report.kinds for each in kind.alternatives} == {"estimated"}


def test_without_a_name_in_the_program_a_weight_has_its_path_in_the_signature() -> None:
    def step(weights: dict[str, jax.Array], x: jax.Array) -> dict[str, jax.Array]:
        def loss(weights: dict[str, jax.Array]) -> jax.Array:
            return jnp.mean(lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, weights["w"])[0] ** 2)

        return jax.tree.map(lambda w, g: w - g, weights, jax.grad(loss)(weights))

    arguments = {"w": np.ones((2, 16, 16), np.float32)}, np.ones((16, 16), np.float32)
    plan = autoshard(step, AbstractMesh((4,), ("x",)), *arguments, option=ESTIMATE)
    assert plan.signature is not None
    report = signed(report_of(plan), plan.signature)
    assert report.axis_names == ("x",)
    assert {path for block in report.blocks for path in block.weights} == {"args[0]['w']"}


class Measured:
    """Profiles of the candidates: `failing` cannot be run."""

    def __init__(self, failing: frozenset[int] = frozenset()):
        self._number = measured_numbers(two_layer_candidates())
        self._failing = failing

    def __call__(self, modules: Sequence[HloModule], samples: Samples = None, /) -> list[Profile]:
        del samples
        return [self._profile(self._number[measured_program(module)]) for module in modules]

    def _profile(self, number: int) -> Profile:
        if number in self._failing:
            return Profile(status="failed", created_at=utc_now(), failure="crashed", failure_message="it did\nso")
        seconds = estimated_s(distinct(two_layer_candidates())[number].work, RATES) + 1e-6
        return Profile(status="measured", created_at=utc_now(), samples_s=(seconds,), compile_s=0.1, **NOTHING)


def test_what_was_not_measured_is_told_as_an_estimate() -> None:
    choosing = PlanSearch(CandidateCosts(two_layer_candidates(), two_layer_boundaries(), RATES, Measured(), 1.5))
    solution = choosing.best(1, None)[0]
    report = planned(choosing, solution.choices).report()
    assert sum_s(report) == pytest.approx(solution.time_s + 0.25)
    every = [each for kind in report.kinds for each in kind.alternatives]
    assert {each.source for each in every} == {"measured", "estimated"}
    assert sum(each.source == "measured" for each in every) >= choosing.costs.measured
    chosen = [report.kinds[block.kind].alternatives[block.chosen] for block in report.blocks]
    assert {each.source for each in chosen} == {"measured"}


def test_an_alternative_that_cannot_be_run_says_why() -> None:
    every_one = PlanSearch(CandidateCosts(two_layer_candidates(), two_layer_boundaries(), RATES, Measured(), math.inf))
    failing = frozenset({sorted(every_one.costs.seconds)[1]})
    choosing = PlanSearch(
        CandidateCosts(two_layer_candidates(), two_layer_boundaries(), RATES, Measured(failing), math.inf)
    )
    report = planned(choosing, choosing.best(1, None)[0].choices).report()
    every = [each for kind in report.kinds for each in kind.alternatives]
    assert {(each.time_s, each.failure) for each in every if each.failure} == {(None, "crashed: it did")}


def test_the_whole_plans_that_were_timed_are_told_with_the_chosen_one() -> None:
    choosing = PlanSearch(CandidateCosts(two_layer_candidates(), two_layer_boundaries(), RATES, None, 1.5))
    first, other = choosing.best(2, None)
    tried = [
        MeasuredPlan(first, 0.5, 100, 3, name="best predicted"),
        MeasuredPlan(other, failure="crashed: it did", name="data parallel"),
    ]
    found = planned(choosing, first.choices, tried=tried).report().tried
    assert [(each.name, each.measured_s, each.failure, each.chosen) for each in found] == [
        ("best predicted", 0.5, "", True),
        ("data parallel", None, "crashed: it did", False),
    ]
    assert found[0].predicted_s == pytest.approx(first.time_s + 0.25)


def test_communication_is_along_the_axes_that_split_what_is_summed() -> None:
    report = report_of(gpt_plan((2, 2)))
    sums = [
        (each.roles, communication.axes)
        for kind in report.kinds
        for each in kind.alternatives
        for communication in each.communication
        if communication.kind == "all-reduce"
    ]
    # Along an axis whose devices do the same, nothing is summed.
    assert sums
    assert all(roles[axis] is not None for roles, axes in sums for axis in axes)
    assert {axes for _, axes in sums} >= {(0,), (1,), (0, 1)}


def normed_step(weight: jax.Array, x: jax.Array) -> jax.Array:
    """(weight, batch) -> new weight, of a layer with the statistics of a batch norm."""

    def loss(weight: jax.Array) -> jax.Array:
        y = x @ weight
        y = jnp.tanh((y - y.mean(axis=0)) / jnp.sqrt(y.var(axis=0) + 1e-3))
        return jnp.sum(y**4)

    return weight - 0.1 * jax.grad(loss)(weight)


def test_the_gradient_of_a_weight_is_told_from_the_statistics_of_a_batch_norm() -> None:
    arguments = np.ones((24, 16), np.float32), np.ones((32, 24), np.float32)
    report = report_of(autoshard(normed_step, AbstractMesh((8,), ("x",)), *arguments, option=ESTIMATE))
    (kind,) = report.kinds
    (by_samples,) = (each for each in kind.alternatives if each.roles == ("samples",) and each.kept == "as used")
    sizes = {each.size_bytes: each.purpose for each in by_samples.communication}
    gradient = 24 * 16 * 4
    assert sizes.pop(gradient) == "gradient"
    assert sizes
    assert set(sizes.values()) == {None}


def test_segments_are_numbered_by_what_they_are_made_of() -> None:
    assert segments_of([0, 1, 2, 1, 2, 1, 2, 3]) == [
        (0, 0), (1, 0), (1, 0), (1, 1), (1, 1), (1, 2), (1, 2), (2, 0),
    ]  # fmt: skip


def test_weights_are_what_is_updated_and_used_but_no_moments() -> None:
    assert trained_parameters(two_layer_module(), two_layer_blocks()) == {0, 1}


def test_weights_of_a_program_that_updates_nothing_are_what_activations_are_multiplied_with() -> None:
    module = dataclasses.replace(two_layer_module(), donated=(False,) * 5)
    assert trained_parameters(module, two_layer_blocks()) == {0, 1}
