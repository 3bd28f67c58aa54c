"""Search problems with the graphs of models, and random ones, whose tables are drawn at random.

Takes a shape and its sizes; gives a `SearchProblem`. Invariant: the same arguments give the same problem; layers are
all alike, as those of a model are, but for `star`, `random` and `grid`, where every table is another one.
"""

import itertools
import math
from collections.abc import Callable

import numpy as np

from alpa_cfp.search import Edge, SearchProblem, Variable

_CHAINS = ("chain", "tied", "unet", "unet_attention", "hub")
# Edges a variable of a random graph.
_EDGES = 2


def make(shape: str, layers: int, variables: int, choices: int, seed: int = 0) -> SearchProblem:
    """A problem of one of `SHAPES`; times in seconds and sizes in bytes are those of a large model's layers."""
    rng = np.random.default_rng(seed)
    if shape in _CHAINS:
        return _chain(rng, shape, layers, variables, choices)
    return _OTHERS[shape](rng, layers, variables, choices)


def _chain(rng: np.random.Generator, shape: str, layers: int, variables: int, choices: int) -> SearchProblem:
    kinds = [_tables(rng, choices) for _ in range(variables)]
    steps = [_times(rng, choices) for _ in range(variables)]
    count = layers * variables
    made = [Variable(f"{i}", *kinds[i % variables]) for i in range(count)]
    edges = [Edge(f"{i}", f"{i + 1}", steps[i % variables]) for i in range(count - 1)]
    skip = _times(rng, choices)
    if shape == "tied":
        edges.append(Edge("0", f"{count - 1}", skip))
    elif shape == "unet":
        starts = (layer * variables for layer in range(layers // 2))
        edges += [Edge(f"{start}", f"{count - 1 - start}", skip) for start in starts]
    elif shape == "unet_attention":
        edges += [Edge(f"{start}", f"{count - 1 - start}", skip) for start in range(count // 2 - 1)]
        within = list(itertools.combinations(range(variables), 2))
        inner = {pair: _times(rng, choices) for pair in within if pair[1] - pair[0] > 1}
        for layer, (pair, time_s) in itertools.product(range(layers), inner.items()):
            first, second = (layer * variables + place for place in pair)
            edges.append(Edge(f"{first}", f"{second}", time_s))
    elif shape == "hub":
        made.append(Variable("hub", *_tables(rng, choices)))
        edges += [Edge(f"{layer * variables}", "hub", skip) for layer in range(layers)]
    return SearchProblem(tuple(made), tuple(edges))


def _lstm(rng: np.random.Generator, layers: int, variables: int, choices: int) -> SearchProblem:
    """Each step of the encoder and of the decoder is `variables` cells; then attention, and the logits."""
    kinds = {kind: _tables(rng, choices) for kind in ("weights", "encoder", "decoder", "attention", "logits")}
    made: list[Variable] = []
    edges: list[Edge] = []
    times: dict[str, np.ndarray] = {}

    def add(kind: str, name: str, *before: str) -> str:
        made.append(Variable(name, *kinds[kind]))
        for other in before:
            between = f"{other.split()[0]} {kind}"
            edges.append(Edge(other, name, times.setdefault(between, _times(rng, choices))))
        return name

    weights = {kind: add("weights", f"{kind}-weights") for kind in ("encoder", "decoder", "logits")}
    states = [""] * variables
    read: list[str] = []
    for kind, step in itertools.product(("encoder", "decoder"), range(layers)):
        below = ""
        for layer in range(variables):
            near = [each for each in (states[layer], below) if each]
            states[layer] = below = add(kind, f"{kind} {step} {layer}", weights[kind], *dict.fromkeys(near))
        if kind == "encoder":
            read.append(below)
        else:
            attention = add("attention", f"attention {step}", below, *(each for each in read if each != below))
            add("logits", f"logits {step}", attention, weights["logits"])
    return SearchProblem(tuple(made), tuple(edges))


def _star(rng: np.random.Generator, layers: int, variables: int, choices: int) -> SearchProblem:
    count = layers * variables
    made = [Variable(f"{i}", *_tables(rng, choices)) for i in range(count)]
    edges = [Edge(f"{i}", f"{i + 1}", _times(rng, choices)) for i in range(count - 1)]
    edges += [Edge(f"{i}", "hub", _times(rng, choices)) for i in range(count)]
    return SearchProblem((*made, Variable("hub", *_tables(rng, choices))), tuple(edges))


def _random(rng: np.random.Generator, layers: int, variables: int, choices: int) -> SearchProblem:
    count = layers * variables
    pairs = {(i, i + 1) for i in range(count - 1)}
    while len(pairs) < min(_EDGES * count, count * (count - 1) // 2):
        first, second = sorted(rng.choice(count, 2, replace=False).tolist())
        pairs.add((first, second))
    return _joined(rng, count, sorted(pairs), choices)


def _grid(rng: np.random.Generator, layers: int, variables: int, choices: int) -> SearchProblem:
    side = math.isqrt(layers * variables)
    pairs = [(i, i + 1) for i in range(side * side) if (i + 1) % side]
    pairs += [(i, i + side) for i in range(side * (side - 1))]
    return _joined(rng, side * side, pairs, choices)


def _joined(rng: np.random.Generator, count: int, pairs: list[tuple[int, int]], choices: int) -> SearchProblem:
    made = [Variable(f"{i}", *_tables(rng, choices)) for i in range(count)]
    return SearchProblem(tuple(made), tuple(Edge(f"{i}", f"{j}", _times(rng, choices)) for i, j in pairs))


def _tables(rng: np.random.Generator, choices: int) -> tuple[np.ndarray, ...]:
    """Seconds, state, saved and transient bytes: what is sharded further takes less memory and more time."""
    sharded = rng.uniform(0, 1, choices)
    return (
        (1 + 2 * sharded + rng.uniform(0, 0.5, choices)) * 1e-3,
        ((1 - sharded) * 2e8 + rng.uniform(0, 2e7, choices)).round(),
        ((1 - rng.uniform(0, 1, choices) * sharded) * 1e8).round(),
        (rng.uniform(0.2, 1, choices) * 3e8).round(),
    )


def _times(rng: np.random.Generator, choices: int) -> np.ndarray:
    """Seconds of resharding; nearly a third of the pairs need none."""
    return np.where(rng.random((choices, choices)) < 0.3, 0.0, rng.uniform(0, 1e-3, (choices, choices)))


_OTHERS: dict[str, Callable[[np.random.Generator, int, int, int], SearchProblem]] = {
    "star": _star,
    "lstm": _lstm,
    "random": _random,
    "grid": _grid,
}
SHAPES = (*_CHAINS, *_OTHERS)
