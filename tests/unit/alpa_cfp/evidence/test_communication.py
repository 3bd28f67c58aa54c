"""What a candidate communicates is known from its program, or without it from that of the one that shares nothing."""

from dataclasses import replace

import pytest

from alpa_cfp.candidates.block_candidates import find_block_candidates
from alpa_cfp.evidence.communication import Communications, source_of
from alpa_cfp.evidence.roles import roles_of
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.plan.plan_report import Communication, Purpose
from alpa_cfp.spmd.partition import Collective
from alpa_cfp.spmd.partition.local_ops import HANDLERS
from alpa_cfp.strategies.block_strategy import StateSharding
from unit.alpa_cfp.training_steps import MESH, WIDTH, two_layer_blocks, two_layer_candidates, uncovered_module


@pytest.fixture(autouse=True)
def uncovered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves Fourier transforms to XLA's partitioner."""
    monkeypatch.delitem(HANDLERS, "stablehlo.fft")


WEIGHTS = {0, 1}
SIZE = 4 * WIDTH * WIDTH


def of_samples(*, made: bool) -> dict[str, tuple[Communication, ...]]:
    """What the first layer communicates that splits samples, by where it keeps its state."""
    block, graph = two_layer_candidates()[0], two_layer_blocks().graph
    of_factors = roles_of(graph, two_layer_blocks().blocks[0], WEIGHTS)
    roles = [
        tuple(None if factor is None else of_factors[factor] for factor in candidate.strategy.factors)
        for candidate in block.candidates
    ]
    values = {graph.parameters[number] for number in WEIGHTS}
    inputs = frozenset(number for number, value in enumerate(block.inputs) if graph.origin(value) in values)
    results = [graph.shape(value) == (WIDTH, WIDTH) for value in block.outputs]
    unread = [None] * len(roles)
    found = Communications(MESH, block.candidates, roles, [made] * len(roles), unread, inputs, results).all()
    return {
        candidate.strategy.state_sharding: each
        for candidate, own, each in zip(block.candidates, roles, found, strict=True)
        if own == ("samples",)
    }


@pytest.mark.parametrize("made", [True, False])
def test_gradients_are_summed_and_where_state_is_shared_scattered_and_weights_gathered(*, made: bool) -> None:
    found = of_samples(made=made)
    assert found[StateSharding.REPLICATED] == (Communication("all-reduce", (0,), SIZE, 1, "gradient"),)
    shared: set[tuple[str, int, Purpose | None]] = {
        ("reduce-scatter", SIZE, "gradient"),
        ("all-gather", SIZE // 8, "weight"),
    }
    for kept in (StateSharding.ZERO2, StateSharding.ZERO3):
        assert {(each.kind, each.size_bytes, each.purpose) for each in found[kept]} == shared


GRADIENT = Communication("all-reduce", (0,), 4 * 32 * 32, 1, "gradient")


def of_uncovered(*compiled: Collective) -> tuple[Communication, ...]:
    """What a block communicates that XLA partitions and that splits samples, read from its compiled program if any."""
    (block,) = find_block_candidates(AnalysedProgram(uncovered_module()).subprograms, MESH, {})
    candidate = next(each for each in block.candidates if each.inputs[0].dims[0])
    (found,) = Communications(MESH, [candidate], [("samples",)], [True], [compiled or None], {1}, [True]).all()
    return found


def test_of_a_program_that_xla_partitions_the_prediction_says_what_is_communicated_and_what_for() -> None:
    assert GRADIENT in of_uncovered()


def test_what_a_compiled_program_communicates_has_the_purpose_of_what_was_predicted_and_equals_it() -> None:
    gradient, other = Collective("all-reduce", GRADIENT.size_bytes, 8), Collective("all-gather", 12, 8)
    assert of_uncovered(gradient, other) == (GRADIENT, Communication("all-gather", (0,), 12, 1))


def test_it_is_known_whether_communication_is_read_predicted_or_not_known() -> None:
    candidate = two_layer_candidates()[0].candidates[0]
    assert source_of(candidate, None) == "program"
    assert source_of(replace(candidate, predicted="a sort"), None) == "predicted"
    assert source_of(replace(candidate, unread="a sort"), None) == "unknown"
    assert source_of(replace(candidate, unread="a sort"), ()) == "compiled"
