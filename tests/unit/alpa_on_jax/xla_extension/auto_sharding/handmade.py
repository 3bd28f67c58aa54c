"""Random nodes that belong to no program, for what holds of every ILP.

Invariant: all costs are whole numbers, so sums of them are exact even where some are infinite.
"""

import numpy as np
from hypothesis import strategies as st

from alpa_on_jax.xla_extension.auto_sharding.communication import INFINITY_COST
from alpa_on_jax.xla_extension.auto_sharding.graph import Instruction
from alpa_on_jax.xla_extension.auto_sharding.specs import FIRST, NONE, SECOND
from alpa_on_jax.xla_extension.auto_sharding.strategies import Node, Strategy

_SPECS = ((FIRST,), (SECOND,), (NONE,))


@st.composite
def nodes(draw: st.DrawFn, most: int = 6) -> list[Node]:
    """Up to `most` nodes; some follow an earlier one, maybe without some of its strategies.

    The first one has a choice and costs something: where nothing does, alpa's solver gives -1 as the objective.
    """
    made: list[Node] = []
    for index in range(draw(st.integers(1, most))):
        followed = draw(st.sampled_from([None, *made])) if draw(st.booleans()) else None
        if followed is None:
            follows = ()
            specs = draw(st.permutations(_SPECS))[: draw(st.integers(1 if made else 2, 3))]
        else:
            follows = tuple(sorted(draw(st.sets(st.integers(0, len(followed.strategies) - 1), min_size=1))))
            specs = [followed.specs[k] for k in follows]
        instruction = Instruction(index, "made", (4,), 16.0, None)
        node = Node(index, instruction, tuple(Strategy(str(spec), spec) for spec in specs), followed, follows)
        node.specs = tuple(specs)
        count = len(node.strategies)
        node.compute_cost, node.communication_cost, node.memory_bytes = (_numbers(draw, count) for _ in range(3))
        if not made:
            node.compute_cost += 1
        if followed is not None:
            between = np.full((len(followed.strategies), count), INFINITY_COST)
            between[list(follows), range(count)] = 0
            node.edges.append((followed, between))
        for source in draw(st.lists(st.sampled_from(made), max_size=2)) if made else []:
            node.edges.append((source, _numbers(draw, len(source.strategies) * count).reshape(-1, count)))
        made.append(node)
    return made


def _numbers(draw: st.DrawFn, count: int) -> np.ndarray:
    return np.array(draw(st.lists(st.integers(0, 9), min_size=count, max_size=count)), float)


@st.composite
def sums_of_dots(draw: st.DrawFn, made: list[Node]) -> list[tuple[Node, Node]]:
    """Some pairs of nodes with equally many strategies and equal communication costs, as dots of one shape have."""
    pairs = [
        (a, b)
        for a in made
        for b in made
        if a.index < b.index and np.array_equal(a.communication_cost, b.communication_cost)
    ]
    return draw(st.lists(st.sampled_from(pairs), max_size=2, unique=True)) if pairs else []
