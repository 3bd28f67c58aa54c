"""What a candidate communicates is known from its program, or without it from that of the one that shares nothing."""

import pytest

from alpa_cfp.explaining.account import Communication, Purpose
from alpa_cfp.explaining.communicating import Communications
from alpa_cfp.explaining.roles import roles_of
from alpa_cfp.strategies import Kept
from unit.alpa_cfp.steps import MESH, WIDTH, two_layer_blocks, two_layer_units

WEIGHTS = {0, 1}
SIZE = 4 * WIDTH * WIDTH


def of_samples(*, made: bool) -> dict[str, tuple[Communication, ...]]:
    """What the first layer communicates that splits samples, by where it keeps its state."""
    unit, graph = two_layer_units()[0], two_layer_blocks().graph
    of_factors = roles_of(graph, two_layer_blocks().blocks[0], WEIGHTS)
    roles = [
        tuple(None if factor is None else of_factors[factor] for factor in candidate.strategy.factors)
        for candidate in unit.candidates
    ]
    values = {graph.parameters[number] for number in WEIGHTS}
    inputs = frozenset(number for number, value in enumerate(unit.inputs) if graph.origin(value) in values)
    results = [graph.shape(value) == (WIDTH, WIDTH) for value in unit.outputs]
    found = Communications(MESH, unit.candidates, roles, [made] * len(roles), inputs, results).all()
    return {
        candidate.strategy.kept: each
        for candidate, own, each in zip(unit.candidates, roles, found, strict=True)
        if own == ("samples",)
    }


@pytest.mark.parametrize("made", [True, False])
def test_gradients_are_summed_and_where_state_is_shared_scattered_and_weights_gathered(*, made: bool) -> None:
    found = of_samples(made=made)
    assert found[Kept.AS_USED] == (Communication("all-reduce", (0,), SIZE, 1, "gradient"),)
    shared: set[tuple[str, int, Purpose | None]] = {
        ("reduce-scatter", SIZE, "gradient"),
        ("all-gather", SIZE // 8, "weight"),
    }
    for kept in (Kept.MOMENTS_SPLIT, Kept.ALL_SPLIT):
        assert {(each.kind, each.size_bytes, each.purpose) for each in found[kept]} == shared
