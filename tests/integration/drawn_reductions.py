"""The reductions, contractions and indexing ops for `drawn_programs`, registered beside those of `drawn_ops`."""

import math

from hypothesis import strategies as st

from integration.drawn_ops import FUNCTION_ROUNDS, KINDS, kind, moved
from integration.drawn_programs import LIMIT, MOST_ELEMENTS, Drawing, NotDrawn, Value

__all__ = ["CONTRACTIONS", "KINDS"]

CONTRACTIONS = ("dot", "dot_gradient", "convolution", "convolution_gradient")


def _most(value: Value) -> float:
    return LIMIT.get(value.dtype, 1e9)


def _count(value: Value, dims: tuple[int, ...]) -> int:
    return math.prod(value.shape[dim] for dim in dims)


# Reductions


@kind
def sum_(d: Drawing) -> None:
    x = d.value("fiuc", 1, empty=True)
    dims = d.dims(x)
    n = max(1, _count(x, dims))
    x = d.within(x, _most(x) / n) if x.kind in "fc" else x
    # The first one sums bfloat16 as float32. No sum starts from another value: XLA counts it several times where the
    # operand is an outer product, on one device, too.
    one = f"jnp.sum({x}, {dims}, dtype={x}.dtype)"
    other = f"lax.reduce({x}, jnp.zeros((), {x}.dtype), lax.add, {dims})"
    d.put(d.choose([one, other]), [x], n * x.bound, n * x.error, rounds=n)


@kind
def mean_and_variance(d: Drawing) -> None:
    x = d.within(d.value("f", 1), 16)
    dims = d.dims(x)
    n = _count(x, dims)
    name = d.choose(["mean", "var"])
    slope = 1 if name == "mean" else 4 * x.bound
    bound = x.bound if name == "mean" else max(1, x.bound**2)
    d.put(f"jnp.{name}({x}, {dims})", [x], bound, slope * x.error, rounds=4 * n, whole=False)


@kind
def extremum(d: Drawing) -> None:
    x = d.value("fiu", 1)
    name, start = d.choose([("max", 0), ("min", 3), ("max", None), ("min", None)])
    dims = d.dims(x)
    if start is None:
        moved(d, f"jnp.{name}({x}, {dims})", x)
    else:
        d.put(f"lax.reduce({x}, jnp.asarray({start}, {x}.dtype), lax.{name}, {dims})", [x], x.bound + 3, x.error)


@kind
def product(d: Drawing) -> None:
    x = d.value("fiu", 1)
    dims = d.dims(x)
    n = _count(x, dims)
    x = d.within(x, 2 if n < 8 else 1) if x.kind == "f" else x
    bound = x.bound**n if x.kind == "f" else 2.0**32
    error = n * bound * x.error * (1 + x.error) ** n
    d.put(f"lax.reduce({x}, jnp.ones((), {x}.dtype), lax.mul, {dims})", [x], bound, error, rounds=n)


@kind
def any_and_all(d: Drawing) -> None:
    x = d.value("b", 1, empty=True)
    d.put(f"jnp.{d.choose(['any', 'all'])}({x}, {d.dims(x)})", [x])


@kind
def bits_of_all(d: Drawing) -> None:
    x = d.value("iub", 1)
    name, start = d.choose([("bitwise_xor", 0), ("bitwise_or", 0), ("bitwise_and", -1)])
    # All bits set is the largest of unsigned numbers.
    neutral = f"~jnp.zeros((), {x}.dtype)" if start else f"jnp.zeros((), {x}.dtype)"
    d.put(f"lax.reduce({x}, {neutral}, lax.{name}, {d.dims(x)})", [x], 2.0**32)


@kind
def reduction_of_ones_own(d: Drawing) -> None:
    x = d.value("f", 1)
    dims = d.dims(x)
    n = _count(x, dims)
    if d.flag():
        text = f"lax.reduce({x}, jnp.asarray(-jnp.inf, {x}.dtype), jnp.logaddexp, {dims})"
        d.put(text, [x], x.bound + 8, x.error, rounds=4 * n, whole=False)
        return
    x = d.within(x, _most(x) / n)
    text = f"lax.reduce({x}, jnp.zeros((), {x}.dtype), lambda a, b: (a + a) / 2 + b, {dims})"
    d.put(text, [x], 2 * n * x.bound, n * x.error, rounds=n)


@kind
def reduction_of_two_arrays(d: Drawing) -> None:
    x = d.value("fi", 1, exact=True)
    y = d.array(x.shape, x.dtype, exact=True)
    dims = d.dims(x)
    n = _count(x, dims)
    x, y = (x, y) if x.kind == "i" else (d.within(x, _most(x) / n), d.within(y, _most(y) / n))
    computation = d.choose(["(a[0] + b[0], a[1] + b[1])", "(a[0] + b[0], lax.max(a[1], b[1]))"])
    zeros = f"(jnp.zeros((), {x}.dtype),) * 2"
    text = f"lax.reduce(({x}, {y}), {zeros}, lambda a, b: {computation}, {dims})[{d.number(0, 1)}]"
    d.put(text, [x, y], n * max(x.bound, y.bound), rounds=n)


@kind
def argument_of_extremum(d: Drawing) -> None:
    x = d.value("fiu", 1, exact=True)
    dim = d.number(0, x.rank - 1)
    d.put(f"jnp.{d.choose(['argmax', 'argmin'])}({x}, {dim})", [x], x.shape[dim])


@kind
def normalisation(d: Drawing) -> None:
    x = d.within(d.value("f", 1), 30)
    dim = d.number(0, x.rank - 1)
    text = d.choose(["jax.nn.softmax({}, {})", "jax.nn.logsumexp({}, {})", "jax.nn.log_softmax({}, {})"])
    rounds = FUNCTION_ROUNDS + 2 * x.shape[dim]
    d.put(text.format(x, dim), [x], 2 * x.bound + 8, 3 * x.error, rounds=rounds, whole=False)


@kind
def cumulative(d: Drawing) -> None:
    x = d.value("fi", 1)
    dim = d.number(0, x.rank - 1)
    n, name = x.shape[dim], d.choose(["cumsum", "cummax", "cummin", "cumprod", "cumlogsumexp"])
    if name == "cumlogsumexp" and x.kind == "i":
        raise NotDrawn
    x = d.within(x, {"cumprod": 1, "cumsum": _most(x) / n}.get(name, 100))
    bound = {"cumsum": n * x.bound, "cumlogsumexp": x.bound + 8}.get(name, x.bound)
    slope = n if name in ("cumsum", "cumprod") else 1
    rounds, whole = (4 * n, False) if name == "cumlogsumexp" else (n, True)
    reverse = d.flag()
    d.put(f"lax.{name}({x}, {dim}, reverse={reverse})", [x], bound, slope * x.error, rounds=rounds, whole=whole)


def _windows(d: Drawing, x: Value) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    sizes = [d.choose([1, 2, 3]) if size > 2 else 1 for size in x.shape]
    strides = [d.choose([1, 2]) if size > 2 else 1 for size in x.shape]
    # At least one element is in each window.
    pads = [(d.number(0, size - 1), d.number(0, size - 1)) for size in sizes]
    return sizes, strides, pads


@kind
def window(d: Drawing) -> None:
    x = d.value("fi", 1, 4)
    sizes, strides, pads = _windows(d, x)
    n, name = math.prod(sizes), d.choose(["add", "max", "min", "mul"])
    x = d.within(x, 1 if name == "mul" else _most(x) / n) if x.kind == "f" else x
    start = {"add": 0, "max": -100, "min": 100, "mul": 1}[name]
    text = f"lax.reduce_window({x}, jnp.asarray({start}, {x}.dtype), lax.{name}, {sizes}, {strides}, {pads})"
    bound = {"add": n * x.bound, "mul": x.bound**n if x.kind == "f" else 2.0**32}.get(name, max(100, x.bound))
    d.put(text, [x], bound, n * x.error, rounds=n)


@kind
def gradient_of_max_pool(d: Drawing) -> None:
    x = d.value("f", 1, 4, exact=True)
    sizes, strides, pads = _windows(d, x)
    pool = f"lambda a: lax.reduce_window(a, -jnp.inf, lax.max, {sizes}, {strides}, {pads})"
    weights = d.within(d.array(d.shape_of(f"({pool})({x})", x), x.dtype), 8)
    n = math.prod(sizes)
    d.put(f"jax.vjp({pool}, {x})[1]({weights})[0]", [x, weights], n * weights.bound, n * weights.error, rounds=n)


# Sorting and indexing


@kind
def sort(d: Drawing) -> None:
    x = d.value("fiu", 1)
    dim = d.number(0, x.rank - 1)
    moved(d, f"jnp.sort({x}, {dim}, descending={d.flag()})", x)


@kind
def sort_by_keys(d: Drawing) -> None:
    keys = d.value("fiu", 1, exact=True)
    y = d.array(keys.shape, d.choose(["float32", keys.dtype]))
    text = f"lax.sort(({keys}, {y}), dimension={d.number(0, keys.rank - 1)}, num_keys=1)[1]"
    d.put(text, [keys, y], y.bound, y.error, rounds=0)


@kind
def argsort(d: Drawing) -> None:
    x = d.value("fiu", 1, exact=True)
    dim = d.number(0, x.rank - 1)
    d.put(f"jnp.argsort({x}, {dim})", [x], x.shape[dim])


@kind
def top_k(d: Drawing) -> None:
    which = d.number(0, 1)
    x = d.value("fi", 1, exact=bool(which))
    text = f"lax.top_k({x}, {d.number(1, x.shape[-1])})[{which}]"
    d.put(text, [x], max(x.bound, x.shape[-1]), x.error, rounds=0)


def _indices(d: Drawing) -> Value:
    i = d.value("iu", 1, 2)
    return i if i.size <= 64 else d.new_input((d.choose([8, 4, 3, 1, 16]),), i.dtype)


@kind
def gather(d: Drawing) -> None:
    x, i = d.value("fiubc", 1, 3), _indices(d)
    dim = d.number(0, x.rank - 1)
    text = d.choose(
        [
            f"jnp.take({x}, {i}, {dim}, mode='clip')",
            f"jnp.take({x}, {i}, {dim}, mode='wrap')",
            f"{x}.at[({'slice(None), ' * dim}{i})].get(mode='fill', fill_value=0)",
            f"{x}[({'slice(None), ' * dim}{i})]",
        ]
    )
    moved(d, text, x, i)


@kind
def gather_along(d: Drawing) -> None:
    x = d.value("fiub", 1, 3)
    dim = d.number(0, x.rank - 1)
    i = d.array((*x.shape[:dim], d.choose([x.shape[dim], 1, 4]), *x.shape[dim + 1 :]), "int32")
    moved(d, f"jnp.take_along_axis({x}, {i}, {dim}, mode='{d.choose(['clip', 'fill'])}')", x, i)


@kind
def scatter(d: Drawing) -> None:
    x, i = d.value("fiu", 1, 3), _indices(d)
    dim = d.number(0, x.rank - 1)
    updates = d.array((*x.shape[:dim], *i.shape, *x.shape[dim + 1 :]), x.dtype)
    name = d.choose(["add", "subtract", "max", "min", "multiply"])
    if x.kind == "f":
        x, updates = (d.within(v, 1 if name == "multiply" else 100) for v in (x, updates))
    n = i.size + 1
    most, error = max(x.bound, updates.bound), n * max(x.error, updates.error)
    place = f"({'slice(None), ' * dim}{i})" if dim else f"{i}"
    text = f"{x}.at[{place}].{name}({updates}, mode='{d.choose(['drop', 'clip'])}')"
    d.put(text, [x, i, updates], n * most if name in ("add", "subtract") else most, error, rounds=n)


@kind
def scatter_of_unique_rows(d: Drawing) -> None:
    x = d.within(d.value("fiu", 1, 3), 100)
    rows = d.draw(st.lists(st.integers(0, x.shape[0] + 1), min_size=1, max_size=8, unique=True))
    place = f"{x}.at[jnp.array({rows})]"
    if d.flag():
        d.put(f"{place}.apply(lambda row: 1 - row, mode='drop', unique_indices=True)", [x], x.bound + 1, x.error)
        return
    updates = d.array((len(rows), *x.shape[1:]), x.dtype)
    moved(d, f"{place}.set({updates}, mode='drop', unique_indices=True)", x, updates)


@kind
def segment_sum(d: Drawing) -> None:
    x = d.value("fi", 1, 3)
    i = d.array(x.shape[:1], "int32")
    x = d.within(x, 100) if x.kind == "f" else x
    n = x.shape[0]
    d.put(f"jax.ops.segment_sum({x}, {i}, 8)", [x, i], n * x.bound, n * x.error, rounds=n)


@kind
def one_hot(d: Drawing) -> None:
    i = d.value("iu", 1, 2)
    d.put(f"jax.nn.one_hot({i}, {d.choose([8, 5, 1])}, dtype='{d.choose(['float32', 'bool', 'int8'])}')", [i])


@kind
def gradient_of_gather(d: Drawing) -> None:
    x, i = d.value("f", 1, 3), _indices(d)
    weights = d.within(d.array((*i.shape, *x.shape[1:]), x.dtype), 30)
    n = i.size
    text = f"jax.vjp(lambda a: a[{i} % {x.shape[0]}], {x})[1]({weights})[0]"
    d.put(text, [x, i, weights], n * weights.bound, n * weights.error, rounds=n)


# Contractions


def _product_error(x: Value, y: Value, n: int) -> float:
    return n * (x.bound * y.error + y.bound * x.error + x.error * y.error)


def _operands(d: Drawing) -> tuple[Value, Value, str]:
    """Two arrays and how `jnp.einsum` contracts them: any dims are common, kept or summed."""
    x = d.value(d.choose("ffic"), 1, 3)
    letters = "abc"[: x.rank]
    common = [letter for letter in letters if d.flag()] or [letters[-1]]
    kept = [letter for letter in common[:-1] if d.flag()]
    sizes = dict(zip(letters, x.shape, strict=True))
    for letter in "xy"[: d.number(0, 2) if len(common) < 3 else 0]:
        sizes[letter] = d.choose([8, 4, 16, 3, 1, 7])
    right = d.draw(st.permutations([*common, *(letter for letter in sizes if letter in "xy")]))
    result = d.draw(st.permutations([letter for letter in sizes if letter not in common or letter in kept]))
    most = d.choose([1, 8])
    x = d.within(x, most)
    y = d.within(d.array([sizes[letter] for letter in right], x.dtype), most)
    return x, y, f"{letters},{''.join(right)}->{''.join(result)}"


def _summed(x: Value, spec: str) -> int:
    operands, result = spec.split("->")
    left = operands.split(",")[0]
    return math.prod(size for letter, size in zip(left, x.shape, strict=True) if letter not in result)


@kind
def dot(d: Drawing) -> None:
    x, y, spec = _operands(d)
    n = _summed(x, spec) * (2 if x.kind == "c" else 1)
    wide = ", preferred_element_type='int32'" if x.dtype == "int8" and d.flag() else ""
    bound = n * x.bound * y.bound
    d.put(f"jnp.einsum('{spec}', {x}, {y}{wide})", [x, y], bound, _product_error(x, y, n), rounds=n)


@kind
def dot_gradient(d: Drawing) -> None:
    x, y, spec = _operands(d)
    if x.kind != "f":
        raise NotDrawn
    letters = dict(zip(spec.split("->")[0].replace(",", ""), (*x.shape, *y.shape), strict=True))
    shape = [letters[letter] for letter in spec.split("->")[1]]
    weights = d.within(d.array(shape, x.dtype), 8)
    place = d.number(0, 1)
    other, own = (y, x) if place == 0 else (x, y)
    n = max(1, math.prod(letters.values()) // own.size)
    text = f"jax.vjp(lambda a, b: jnp.einsum('{spec}', a, b), {x}, {y})[1]({weights})[{place}]"
    bound = n * other.bound * weights.bound
    d.put(text, [x, y, weights], bound, _product_error(other, weights, n), rounds=n)


_LAYOUTS = {
    1: [("NWC", "WIO", "NWC"), ("NCW", "OIW", "NCW")],
    2: [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW"), ("HWNC", "HWOI", "NHWC")],
}


def _convolved(d: Drawing) -> tuple[Value, Value, str, int]:
    """An image, a kernel, the rest of the arguments of the convolution, and how many products are summed."""
    spatial = d.choose([1, 2])
    image_dims, kernel_dims, _result_dims = layout = d.choose(_LAYOUTS[spatial])
    x = d.value("f", spatial + 2, spatial + 2) if d.flag() else None
    if x is None:
        sizes = {"N": d.choose([8, 4, 1, 3, 16]), "C": d.choose([8, 4, 16, 1, 3, 6])}
        sizes |= {letter: d.choose([5, 4, 8, 3]) for letter in "HW"}
        x = d.new_input(tuple(sizes[letter] for letter in image_dims), "float32")
    x = d.within(x, 4)
    batch, channels = (x.shape[image_dims.index(letter)] for letter in "NC")
    feature_groups = d.choose([1, 1, *(g for g in (channels, 2, 4) if channels % g == 0)])
    batch_groups = d.choose([g for g in (1, 1, 1, 2, 4) if batch % g == 0]) if feature_groups == 1 else 1
    groups = feature_groups * batch_groups
    sizes = {"I": channels // feature_groups, "O": groups * d.choose([1, 4, 2, 8])}
    sizes |= {letter: d.choose([3, 1, 2]) for letter in "HW"}
    shape = tuple(sizes[letter] for letter in kernel_dims)
    if math.prod(shape) > MOST_ELEMENTS:
        raise NotDrawn
    kernel = d.within(d.array(shape, x.dtype), 4)
    strides, dilation = [d.choose([1, 1, 2]) for _ in range(spatial)], [d.choose([1, 1, 2]) for _ in range(spatial)]
    padding = d.choose(["'SAME'", f"{[(2, 2)] * spatial}", f"{[(4, 3)] * spatial}"])
    rest = (
        f"{strides}, {padding}, rhs_dilation={dilation}, dimension_numbers={layout}, "
        f"feature_group_count={feature_groups}, batch_group_count={batch_groups}"
    )
    return x, kernel, rest, math.prod(shape) // sizes["O"]


@kind
def convolution(d: Drawing) -> None:
    x, kernel, rest, n = _convolved(d)
    text = f"lax.conv_general_dilated({x}, {kernel}, {rest})"
    d.put(text, [x, kernel], n * x.bound * kernel.bound, _product_error(x, kernel, n), rounds=n)


@kind
def convolution_gradient(d: Drawing) -> None:
    x, kernel, rest, _ = _convolved(d)
    of, place = f"lambda a, b: lax.conv_general_dilated(a, b, {rest})", d.number(0, 1)
    shape = d.shape_of(f"({of})({x}, {kernel})", x, kernel)
    weights = d.within(d.array(shape, x.dtype), 4)
    other = kernel if place == 0 else x
    n = max(1, kernel.size, weights.size)
    text = f"jax.vjp({of}, {x}, {kernel})[1]({weights})[{place}]"
    d.put(text, [x, kernel, weights], n * other.bound * weights.bound, _product_error(other, weights, n), rounds=n)
