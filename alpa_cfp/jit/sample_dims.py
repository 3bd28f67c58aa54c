"""Which dim of a result has the samples, if one dim of each operand has, and whether each sample stays by itself.

Takes an equation of a jaxpr with the dims along which its operands and its result have samples; says why a part of the
samples would not give the same part of the result. An equation that is not known here has such a reason. Invariant: an
equation without a reason computes what it gives for a sample from that sample alone, or, where its result has no
samples, adds up what it computes from each.

Uses the parameters of JAX's primitives, tested with 0.10.2, 0.11.2 and 0.12.0.1.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Dims = Sequence[int | None]
Shape = tuple[int, ...]
# Why samples are not by themselves; "" if they are.
Rule = Callable[[Mapping[str, Any], Dims, int, Sequence[Shape], Shape], str]

_NAMES = """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e cbrt ceil clamp clz complex
    conj convert_element_type copy copy_p cos cosh digamma div eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge
    gt igamma igamma_grad_a igammac imag integer_pow is_finite le le_to lgamma log log1p log2 logistic lt lt_to
    max min mul mulhi ne neg nextafter not one_minus_square optimization_barrier or polygamma polynomial
    population_count pow real reduce_precision regularized_incomplete_beta rem round rsqrt select_n shift_left
    shift_right_arithmetic shift_right_logical sign sin sinh sqrt square step_barrier stop_gradient sub tan tanh
    xor zeta
"""
_ELEMENTWISE = frozenset(_NAMES.split())
_REDUCTIONS = ("argmax", "argmin", *(f"reduce_{name}" for name in ("and", "max", "min", "or", "prod", "sum", "xor")))
# The parameter that has sizes, where one does, and whether they are those of the operand's dims.
_SIZES = {
    "broadcast_in_dim": ("shape", False),
    "reshape": ("new_sizes", False),
    "iota": ("shape", False),
    "slice": ("limit_indices", True),
    "dynamic_slice": ("slice_sizes", True),
    "gather": ("slice_sizes", True),
}
# What a scatter adds with: `scatter-add` says it, too, and a jaxpr equals itself only.
_JAXPRS = ("update_jaxpr", "update_consts")
_MIXES = "it computes a sample from several"


def reason_of_samples(
    name: str, params: Mapping[str, Any], dims: Dims, out: int, shapes: Sequence[Shape], result: Shape
) -> str:
    """Returns why an equation whose result has samples does not compute each by itself; "" if it does.

    Args:
        name: The name of its primitive.
        params: Its parameters.
        dims: For each operand the dim that has the samples; None for none.
        out: That of the result.
        shapes: The shapes of the operands.
        result: The shape of the result.
    """
    if name in _ELEMENTWISE:
        return "" if set(dims) <= {out, None} else _MIXES
    rule = _RULES.get(name)
    return f"`{name}` is not known here" if rule is None else rule(params, dims, out, shapes, result)


def is_same_but_for_samples(
    name: str, whole: Mapping[str, Any], part: Mapping[str, Any], dims: Dims, out: int | None
) -> bool:
    """Whether the parameters of an equation for a part of the samples are those for all, but for its size.

    Args:
        name: The name of its primitive.
        whole, part: Its parameters for all samples, and for a part.
        dims, out: As for `reason_of_samples`; None for a result without samples.
    """
    sizes, of_operand = _SIZES.get(name, ("", False))
    dim = (dims[0] if of_operand else out) if sizes else None

    def without_size(params: Mapping[str, Any]) -> dict[str, Any]:
        kept = {key: value for key, value in params.items() if key not in _JAXPRS}
        if dim is not None:
            kept[sizes] = tuple(size for number, size in enumerate(params[sizes]) if number != dim)
        return kept

    return without_size(whole) == without_size(part)


def reason_of_sum(
    name: str, params: Mapping[str, Any], dims: Dims, shapes: Sequence[Shape], is_zero: Callable[[int], bool]
) -> str:
    """Returns why an equation whose operands have samples and whose result has none does not add them up.

    Args:
        name, params, dims, shapes: As for `reason_of_samples`.
        is_zero: Whether an operand is zero everywhere.
    """
    if name == "reduce_sum" and dims[0] in params["axes"]:
        return ""
    if name == "dot_general":
        (left, right), _ = params["dimension_numbers"]
        if (dims[0], dims[1]) in zip(left, right, strict=True):
            return ""
    if name == "conv_general_dilated":
        numbers = params["dimension_numbers"]
        grouped = params["feature_group_count"] * params["batch_group_count"] > 1
        if (dims[0], dims[1]) == (numbers.lhs_spec[1], numbers.rhs_spec[1]) and not grouped:
            return ""
    if name == "scatter-add" and _is_sum_of_updates(params["dimension_numbers"], dims, shapes) and is_zero(0):
        return ""
    return f"`{name}` brings samples together, and is no sum over them"


def _is_sum_of_updates(numbers: Any, dims: Dims, shapes: Sequence[Shape]) -> bool:
    """Whether a scatter adds the rows of each sample to what all samples share, as the gradient of a lookup does."""
    if numbers.operand_batching_dims or dims[0] is not None or dims[1] is None or dims[2] is None:
        return False
    places = [dim for dim in range(len(shapes[2])) if dim not in numbers.update_window_dims]
    return places[dims[1] : dims[1] + 1] == [dims[2]]


def _broadcast(params: Mapping[str, Any], dims: Dims, out: int, _: Sequence[Shape], __: Shape) -> str:
    return "" if dims[0] is None or params["broadcast_dimensions"][dims[0]] == out else _MIXES


def _transpose(params: Mapping[str, Any], dims: Dims, out: int, _: Sequence[Shape], __: Shape) -> str:
    return "" if params["permutation"][out] == dims[0] else _MIXES


def _reshape(_: Mapping[str, Any], dims: Dims, out: int, shapes: Sequence[Shape], result: Shape) -> str:
    """The samples are one after the other on both sides, if as much comes before them."""
    return "" if dims[0] is not None and math.prod(shapes[0][: dims[0]]) == math.prod(result[:out]) else _MIXES


def _reduction(params: Mapping[str, Any], dims: Dims, out: int, shapes: Sequence[Shape], _: Shape) -> str:
    kept = [dim for dim in range(len(shapes[0])) if dim not in params["axes"]]
    return "" if all(dim is None or (dim in kept and kept.index(dim) == out) for dim in dims) else _MIXES


def _dot(params: Mapping[str, Any], dims: Dims, out: int, shapes: Sequence[Shape], _: Shape) -> str:
    contracted, batched = params["dimension_numbers"]
    left, right = dims
    if left is not None and right is not None:
        together = (left, right) in zip(*batched, strict=True)
        return "" if together and batched[0].index(left) == out else _MIXES
    side = 0 if left is not None else 1
    dim = left if right is None else right
    free = [[i for i in range(len(shapes[s])) if i not in (*contracted[s], *batched[s])] for s in (0, 1)]
    if dim not in free[side]:
        return _MIXES
    return "" if len(batched[0]) + side * len(free[0]) + free[side].index(dim) == out else _MIXES


def _convolution(params: Mapping[str, Any], dims: Dims, out: int, _: Sequence[Shape], __: Shape) -> str:
    numbers = params["dimension_numbers"]
    alone = dims[0] == numbers.lhs_spec[0] and dims[1] is None and params["batch_group_count"] == 1
    return "" if alone and out == numbers.out_spec[0] else _MIXES


def _gather(params: Mapping[str, Any], dims: Dims, out: int, shapes: Sequence[Shape], result: Shape) -> str:
    numbers = params["dimension_numbers"]
    table, index = dims
    places = [dim for dim in range(len(result)) if dim not in numbers.offset_dims]
    if index is not None and places[index : index + 1] != [out]:
        return _MIXES
    if index is not None and table is not None:
        pairs = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
        return "" if (table, index) in pairs else _MIXES
    if table is not None:  # the same place of each sample
        taken = set(numbers.collapsed_slice_dims) | set(numbers.operand_batching_dims)
        rest = [dim for dim in range(len(shapes[0])) if dim not in taken]
        whole = table in rest and params["slice_sizes"][table] == shapes[0][table]
        return "" if whole and numbers.offset_dims[rest.index(table)] == out else _MIXES
    return ""


def _scatter(params: Mapping[str, Any], dims: Dims, out: int, shapes: Sequence[Shape], _: Shape) -> str:
    """To the same place of each sample, as the gradient of such a gather."""
    numbers = params["dimension_numbers"]
    table, index, rows = dims
    taken = set(numbers.inserted_window_dims) | set(numbers.operand_batching_dims)
    rest = [dim for dim in range(len(shapes[0])) if dim not in taken]
    if index is not None or rows is None or table != out or table not in rest:
        return _MIXES
    whole = shapes[2][rows] == shapes[0][table]
    return "" if whole and numbers.update_window_dims[rest.index(table)] == rows else _MIXES


def _whole(params: Mapping[str, Any], dims: Dims, out: int, shapes: Sequence[Shape], result: Shape) -> str:
    """A slice, a pad or a reversal leaves the samples as they are: a slice that has all of them takes each."""
    if dims[0] != out or any(dim is not None for dim in dims[1:]) or shapes[0][out] != result[out]:
        return _MIXES
    padding, reversed_dims = params.get("padding_config"), params.get("dimensions", ())
    return _MIXES if (padding is not None and any(padding[out])) or out in reversed_dims else ""


def _concatenate(params: Mapping[str, Any], dims: Dims, out: int, _: Sequence[Shape], __: Shape) -> str:
    return "" if params["dimension"] != out and set(dims) == {out} else _MIXES


def _along(name: str) -> Rule:
    """An op along one dim."""

    def rule(params: Mapping[str, Any], dims: Dims, out: int, _: Sequence[Shape], __: Shape) -> str:
        return "" if params[name] != out and set(dims) == {out} else _MIXES

    return rule


def _iota(params: Mapping[str, Any], _: Dims, out: int, __: Sequence[Shape], ___: Shape) -> str:
    return "" if params["dimension"] != out else "it numbers the samples"


_RULES: Mapping[str, Rule] = {
    "broadcast_in_dim": _broadcast,
    "transpose": _transpose,
    "reshape": _reshape,
    "squeeze": _reshape,
    "expand_dims": _reshape,
    "bitcast_convert_type": _reshape,
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
    "gather": _gather,
    "scatter": _scatter,
    "scatter-add": _scatter,
    "slice": _whole,
    "dynamic_slice": _whole,
    "pad": _whole,
    "rev": _whole,
    "concatenate": _concatenate,
    "iota": _iota,
    "sort": _along("dimension"),
    "split": _along("axis"),
    **{name: _along("axis") for name in ("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")},
    **dict.fromkeys(_REDUCTIONS, _reduction),
}
