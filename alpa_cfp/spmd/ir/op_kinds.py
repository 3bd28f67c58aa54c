"""Kinds of ops: those that compute each element for itself, those that move elements along dims, and reducers.

Takes an op, or its name. Partitioning needs no more of most ops than these facts; for some of these ops Shardy's own
rules say nothing.
"""

from collections.abc import Callable

import numpy as np
from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value

Dims = set[int]
_FRONTEND = "mhlo.frontend_attributes"

# Products, whose operations are counted, and ops that may have some inside.
CONTRACTIONS = frozenset({"stablehlo.dot_general", "stablehlo.convolution"})
CONTROL_FLOW = frozenset({"stablehlo.while", "stablehlo.case", "stablehlo.if"})

# Ops that compute each element of the result from the elements at the same place of the operands.
ELEMENTWISE = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("abs", "add", "and", "atan2", "bitcast_convert", "cbrt", "ceil", "clamp", "compare", "complex", "convert"),
        *("cosine", "count_leading_zeros", "divide", "exponential", "exponential_minus_one", "floor", "imag"),
        *("is_finite", "log", "log_plus_one", "logistic", "maximum", "minimum", "multiply", "negate", "not", "or"),
        *("popcnt", "power", "real", "reduce_precision", "remainder", "round_nearest_afz", "round_nearest_even"),
        *("rsqrt", "select", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sine", "sqrt"),
        *("subtract", "tan", "tanh", "xor"),
    )
)
# The same of ops for which Shardy has no rule.
RULELESS_ELEMENTWISE = frozenset(
    f"chlo.{name}"
    for name in (
        *("acos", "acosh", "asin", "asinh", "atan", "atan_exp", "atanh", "bessel_i1e", "conj", "cosh", "digamma"),
        *("erf", "erf_inv", "erfc", "is_inf", "is_neg_inf", "is_pos_inf", "lgamma", "next_after", "polygamma", "sinh"),
        *("square", "tan", "zeta"),
    )
)

# Those that collectives make of numbers and of booleans, on CPUs and GPUs: XLA's `MatchReductionComputation`. A
# backend makes a minimum or maximum of "and" and "or", which is right for booleans only.
_REDUCERS = frozenset({"add", "maximum", "minimum", "and", "or", "multiply"})


def region_reducer(op: Operation) -> str | None:
    """The name of the one binary op that the region of `op` applies to its two arguments; None if it does more."""
    block = op.regions[0].blocks[0]
    operations = list(block.operations)
    if len(operations) != 2 or set(operations[0].operands) != set(block.arguments):
        return None
    if list(operations[1].operands) != list(operations[0].results):
        return None
    dialect, name = operations[0].operation.name.split(".", 1)
    return name if dialect == "stablehlo" and name in _REDUCERS else None


def is_made_over_devices(op: Operation) -> bool:
    """Whether a `stablehlo.reduce` may be given parts of the reduced dims: a collective then reduces the results.

    Of a reduction of several arrays that selects (an argmax) the devices' results are gathered, and reduced again.
    """
    if len(op.results) > 1:
        return _selects(op)
    reducer = region_reducer(op)
    return reducer is not None and (reducer not in ("and", "or") or is_boolean(op.operands[0]))


def _selects(op: Operation) -> bool:
    """Whether the region of `op` only picks one of its arguments, as that of an argmax does.

    Then it changes nothing that each device begins with the initial values, and the reduction of their results again.
    """
    *body, _ = mlir.block_operations(op.regions[0].blocks[0])
    return all(
        inner.name in ("stablehlo.compare", "stablehlo.select")
        or (inner.name in ("stablehlo.and", "stablehlo.or") and is_boolean(inner.results[0]))
        for inner in body
    )


def is_boolean(value: Value) -> bool:
    """Whether the elements of `value` are booleans."""
    return str(mlir.tensor_type(value).element_type) == "i1"


def padded_dims(op: Operation) -> Dims:
    """The dims along which a pad does something."""
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    return {dim for name in names for dim, amount in enumerate(mlir.int_array(op, name)) if amount}


def windowed_dims(op: Operation) -> Dims:
    """The dims along which the window of a pooling, or of its gradient, moves or pads."""
    window = mlir.int_array(op, "window_dimensions")
    dims = {dim for dim, size in enumerate(window) if size != 1}
    for name in ("window_strides", "base_dilations", "window_dilations"):
        if name in op.attributes:
            dims |= {dim for dim, step in enumerate(mlir.int_array(op, name)) if step != 1}
    if "padding" in op.attributes:
        padding = np.array(ir.DenseElementsAttr(op.attributes["padding"])).reshape(-1, 2)
        dims |= {dim for dim in range(len(window)) if padding[dim].any()}
    return dims


def transformed_dims(op: Operation) -> Dims:
    """The dims of a Fourier transform, which are the last ones."""
    rank = mlir.tensor_type(op.operands[0]).rank
    return set(range(rank - len(mlir.int_array(op, "fft_length")), rank))


def batch_dims(op: Operation) -> int | None:
    """How many leading dims of all its arrays a `stablehlo.custom_call` computes independently along.

    JAX says so of decompositions and solves (`num_batch_dims`); None where nothing is said.
    """
    if op.name != "stablehlo.custom_call" or _FRONTEND not in op.attributes:
        return None
    said = ir.DictAttr(op.attributes[_FRONTEND])
    return int(ir.StringAttr(said["num_batch_dims"]).value) if "num_batch_dims" in said else None


def changed_dims(whole: Value, part: Value) -> Dims:
    """The dims in which two arrays of one rank have different sizes."""
    sizes = zip(mlir.tensor_shape(whole), mlir.tensor_shape(part), strict=True)
    return {dim for dim, (before, after) in enumerate(sizes) if before != after}


# The dims along which a global op moves elements or looks at several of them, of its arrays, all of one rank: what is
# split there has to move first. Along all other dims each device computes its part of the results from its parts of
# the operands. A reduction of one array can stay split; one of several (an argmax) is gathered.
WORKED_DIMS: dict[str, Callable[[Operation], Dims]] = {
    "stablehlo.slice": lambda op: changed_dims(op.operands[0], op.results[0]),
    "stablehlo.dynamic_slice": lambda op: changed_dims(op.operands[0], op.results[0]),
    "stablehlo.dynamic_update_slice": lambda op: changed_dims(op.operands[0], op.operands[1]),
    "stablehlo.pad": padded_dims,
    "stablehlo.concatenate": lambda op: {mlir.integer(op, "dimension")},
    "stablehlo.sort": lambda op: {mlir.integer(op, "dimension")},
    "stablehlo.fft": transformed_dims,
    "chlo.top_k": lambda op: {mlir.tensor_type(op.operands[0]).rank - 1},
    "stablehlo.reverse": lambda op: set(mlir.int_array(op, "dimensions")),
    "stablehlo.reduce_window": windowed_dims,
    "stablehlo.select_and_scatter": windowed_dims,
    "stablehlo.reduce": lambda op: set(mlir.int_array(op, "dimensions")) if len(op.results) > 1 else set(),
}
