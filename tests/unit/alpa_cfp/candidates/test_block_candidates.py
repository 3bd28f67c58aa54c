"""A strategy with permuted axes is not evaluated anew; a marked stage has all candidates of a step."""

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, PartitionSpec

from alpa_cfp.analysis.blocks import ParallelBlock
from alpa_cfp.candidates import block_candidates as candidates
from alpa_cfp.candidates import block_program, kind_candidates
from alpa_cfp.candidates.block_candidates import find_block_candidates
from alpa_cfp.candidates.candidate import Candidate
from alpa_cfp.candidates.kind_candidates import KindCandidates
from alpa_cfp.costs import Work, read_local, work_of
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.jit.constraints import asked_by_user
from alpa_cfp.jit.tracing import trace
from alpa_cfp.select.search_problem import find_boundaries
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import Collective
from alpa_cfp.spmd.partition.local_ops import HANDLERS
from alpa_cfp.spmd.propagation import donation_pairs
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding, strategies_of
from alpa_cfp_bench.workloads.sizes import TINY
from unit.alpa_cfp.training_steps import MESH, model_module, stage_module, uncovered_module


@pytest.fixture(autouse=True)
def uncovered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves Fourier transforms to XLA's partitioner."""
    monkeypatch.delitem(HANDLERS, "stablehlo.fft")


pytestmark = pytest.mark.slow

SQUARE, LONG, CUBE = LogicalMesh((2, 2)), LogicalMesh((2, 4)), LogicalMesh((2, 2, 2))
SMALL = replace(TINY, layers=1)


def found(module: HloModule, mesh: LogicalMesh = SQUARE, *, split_sums: bool = False) -> list[Candidate]:
    subprograms = AnalysedProgram(module).subprograms
    return candidates.distinct(find_block_candidates(subprograms, mesh, {}, split_sums=split_sums))


def constrained_module(mesh: LogicalMesh) -> HloModule:
    """Two layers with a value between them that is split along the first axis."""
    axes = AbstractMesh(mesh.shape, ("a", "b", "c")[: len(mesh.shape)])
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((16, 32), (32, 64), (64, 32))]

    def fn(x: Any, up: Any, down: Any) -> Any:
        return jax.lax.with_sharding_constraint(jnp.tanh(x @ up), PartitionSpec("a")) @ down

    return trace(fn, shapes, {}, (), "cpu", asked_by_user(axes, shapes, {}, None, None)).module


def without_permutations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each strategy be evaluated by its own program."""
    monkeypatch.setattr(kind_candidates, "order_key", lambda _, strategy, names_axes: strategy)


@pytest.mark.parametrize(
    ("module", "mesh"),
    [
        (lambda: stage_module("gpt", SMALL), SQUARE),
        (lambda: model_module("moe"), SQUARE),
        (lambda: model_module("conv"), SQUARE),
        (lambda: model_module("mlp"), CUBE),
        (lambda: model_module("conv"), CUBE),
        (lambda: model_module("mlp"), LogicalMesh((2, 4, 2))),
        (lambda: constrained_module(SQUARE), SQUARE),
        (lambda: constrained_module(CUBE), CUBE),
    ],
    ids=[
        "stage of gpt-2x2", "moe-2x2", "conv-2x2", "mlp-2x2x2", "conv-2x2x2", "mlp-2x4x2", "constrained-2x2",
        "constrained-2x2x2",
    ],
)  # fmt: skip
def test_a_permuted_candidate_is_the_one_that_its_own_program_gives(
    module: Callable[[], HloModule], mesh: LogicalMesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    permuted = found(module(), mesh, split_sums=True)
    without_permutations(monkeypatch)
    assert permuted == found(module(), mesh, split_sums=True)


@pytest.mark.parametrize(
    ("mesh", "least", "most"), [(SQUARE, 0.5, 0.65), (CUBE, 0.2, 0.4), (LogicalMesh((2, 4, 2)), 0.5, 0.8)]
)
def test_programs_are_made_for_one_of_the_orders_of_equal_axes(
    mesh: LogicalMesh, least: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    original = KindCandidates._evaluate
    monkeypatch.setattr(KindCandidates, "_evaluate", lambda *args: made.append(args) or original(*args))
    every = found(model_module("mlp"), mesh)
    base = [each for each in every if each.strategy.state_sharding is StateSharding.REPLICATED]
    assert least * len(base) <= len(made) < most * len(base)


@pytest.mark.parametrize(("module", "mesh"), [("gpt", SQUARE), ("mlp", CUBE)])
def test_the_program_of_a_permuted_candidate_does_what_it_says(module: str, mesh: LogicalMesh) -> None:
    for candidate in found(stage_module(module, SMALL), mesh):
        if candidate.strategy.state_sharding is StateSharding.REPLICATED:
            program = candidate.module.partitioned
            assert program is not None
            assert program.input_shardings == candidate.inputs
            assert work_of(program, read_local(program)) == candidate.work


@pytest.mark.parametrize("name", ["gpt", "moe", "conv"])
def test_a_candidate_with_split_sums_differs_from_the_one_with_whole_sums(name: str) -> None:
    every = found(model_module(name), LONG, split_sums=True)
    split = [each for each in every if each.strategy.sums_along is not None]
    others = [each for each in every if each.strategy.sums_along is None]
    assert split
    assert others == found(model_module(name), LONG)
    for each in split:
        assert not any(
            other.strategy == replace(each.strategy, sums_along=None)
            and (other.inputs, other.outputs, other.work) == (each.inputs, each.outputs, each.work)
            for other in others
        )


def test_axes_of_different_sizes_are_not_permuted(monkeypatch: pytest.MonkeyPatch) -> None:
    without = found(stage_module("gpt", SMALL), LONG)
    without_permutations(monkeypatch)
    assert found(stage_module("gpt", SMALL), LONG) == without


def test_candidates_of_some_strategies_are_those_of_all_that_have_these() -> None:
    program, cache = AnalysedProgram(model_module("mlp", SMALL)), dict[Any, Any]()
    every = find_block_candidates(program.subprograms, SQUARE, cache)

    def by_one_factor(number: int, block: ParallelBlock) -> list[BlockStrategy]:
        assert every[number].kind == number
        return [each for each in strategies_of(block, SQUARE.shape) if each.factors[0] == each.factors[1]]

    some = find_block_candidates(program.subprograms, SQUARE, cache, strategies=by_one_factor)
    for whole, part in zip(every, some, strict=True):
        expected = tuple(each for each in whole.candidates if each.strategy.factors[0] == each.strategy.factors[1])
        assert part == replace(whole, candidates=expected)
        assert 0 < len(expected) < len(whole.candidates)


def test_a_strategy_has_the_same_candidates_whichever_were_made_before() -> None:
    program, cache = AnalysedProgram(model_module("gpt", SMALL)), dict[Any, Any]()
    for keep in (2, 3, 1):
        chosen = lambda _, block, keep=keep: strategies_of(block, SQUARE.shape, split_sums=True)[::keep]  # noqa: E731
        found = find_block_candidates(program.subprograms, SQUARE, cache, strategies=chosen)
        assert found == find_block_candidates(program.subprograms, SQUARE, {}, strategies=chosen)


def test_a_marked_stage_has_the_state_shardings_of_a_plain_step() -> None:
    counts = [
        Counter(candidate.strategy.state_sharding for candidate in found(module, LogicalMesh((1, 4))))
        for module in (stage_module("gpt", SMALL), model_module("gpt", SMALL))
    ]
    assert counts[0] == counts[1]
    assert counts[0][StateSharding.ZERO3] > 0


@pytest.mark.parametrize("name", ["mlp", "gpt"])
def test_the_state_of_a_marked_stage_is_counted_once(name: str) -> None:
    module, mesh = stage_module(name, SMALL), LogicalMesh((1, 1))
    program = AnalysedProgram(module)
    boundaries = find_boundaries(program.module, program.blocks, find_block_candidates(program.subprograms, mesh, {}))
    arguments = sum(math.prod(shape.dims) * shape.dtype.itemsize for shape in module.shape.parameters)
    results = module.shape.results
    others = set(range(len(results))).difference(result for result, _ in donation_pairs(module))
    other_bytes = sum(math.prod(results[number].dims) * results[number].dtype.itemsize for number in others)
    assert sum(int(state[0]) for state in boundaries.state) == pytest.approx(arguments + other_bytes, rel=0.01)


UNCOVERED = "stablehlo.fft is not covered"


def of_samples(state_sharding: StateSharding = StateSharding.REPLICATED) -> Candidate:
    """The candidate of a block that XLA partitions which splits samples."""
    found = candidates.distinct(find_block_candidates(AnalysedProgram(uncovered_module()).subprograms, MESH, {}))
    return next(each for each in found if each.strategy.state_sharding is state_sharding and each.inputs[0].dims[0])


def test_the_sum_of_a_gradient_is_in_the_work_of_a_candidate_that_xla_partitions() -> None:
    candidate = of_samples()
    assert candidate.predicted == UNCOVERED
    assert candidate.unread == ""
    assert Collective("all-reduce", 4 * 32 * 32, 8) in candidate.work.collectives


def test_with_zero3_the_predicted_sum_becomes_a_reduce_scatter() -> None:
    kinds = Counter(each.kind for each in of_samples(StateSharding.ZERO3).work.collectives)
    assert kinds["reduce-scatter"] == 1
    assert kinds["all-reduce"] == 0


def test_at_least_a_candidate_that_xla_partitions_does_an_even_part_and_communicates_nothing() -> None:
    candidate = of_samples()
    program = candidate.module.partitioned
    assert program is not None
    local = read_local(program)
    assert candidate.lower_bound == Work(local.flops / 8, (local.written_bytes + local.read_bytes) / 8, ())


def test_where_nothing_can_be_predicted_what_a_candidate_communicates_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    partition = block_program.partition_to_run
    monkeypatch.setattr(block_program, "partition_to_run", lambda module, predicts: partition(module))
    candidate = of_samples()
    assert (candidate.predicted, candidate.unread) == ("", UNCOVERED)
    assert candidate.work.collectives == ()
    assert candidate.work == candidate.lower_bound
