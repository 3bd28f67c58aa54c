"""Which parameter of a program a value is, and what the user calls it: takes a graph's values and the paths of
parameters, gives numbers and short names. Invariant: a name is a part of the path, which nothing is added to.
"""

import re

from alpa_cfp.analysis.graph import LAYOUT_OPS, Graph

# What takes a layer's weights from those of all layers.
_SLICES = frozenset({"stablehlo.slice", "stablehlo.dynamic_slice"})
_ROOT = re.compile(r"args\[\d+\]|\w*")
_STEP = re.compile(r"\['([^']*)'\]|\[(\w+)\]|\.?(\w+)")
# flax's name for all weights, and what its own layers call theirs: the layer says more.
_COLLECTION = "params"
_VARIABLES = frozenset({"kernel", "embedding", "scale"})


def parameter_of(graph: Graph, value: int) -> int | None:
    """The number of the parameter that a value is, or a part of, laid out in some way; None where it is computed."""
    value = graph.origin(value)
    producer = graph.producer(value)
    while producer is not None and producer.name in LAYOUT_OPS | _SLICES:
        value = graph.origin(producer.operands[0])
        producer = graph.producer(value)
    return graph.values[value].position if producer is None else None


def short_name(path: str) -> str:
    """What a weight is called by its path: "layer_0/q" for "state.params['params']['layer_0']['q']['kernel']"."""
    root = _ROOT.match(path)
    rest = path[root.end() :] if root else path
    steps = [next(filter(None, step), "") for step in _STEP.findall(rest)]
    inner = [step for step in steps if step != _COLLECTION]
    if not any(letter.isalpha() for letter in "".join(inner)):
        inner = [*([root[0]] if root and root[0] else []), *steps]
    return "/".join(inner[:-1] if inner[1:] and inner[-1] in _VARIABLES else inner)
