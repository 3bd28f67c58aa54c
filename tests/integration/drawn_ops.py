"""The elementwise ops and those that move elements, for `drawn_programs`: functions that put one into a drawing.

What is known of a result's magnitude and error is what `Drawing.put` takes; where a function would amplify errors
without a limit, its argument is brought to where it does not. `KINDS` has all kinds by name, those of
`drawn_reductions` included.
"""

import math
from collections.abc import Callable

from hypothesis import strategies as st

from integration.drawn_programs import Drawing, NotDrawn, Value

Kind = Callable[[Drawing], None]
KINDS: dict[str, Kind] = {}

# Two compilations of one function may differ by so many roundings (multiplications and additions that are fused).
FUNCTION_ROUNDS = 32


def kind(function: Kind) -> Kind:
    """Register a kind of op under its function's name."""
    KINDS[function.__name__] = function
    return function


# Elementwise

# Of an argument x: the bound of the result (of the argument's bound) and the largest slope.
_FUNCTIONS: dict[str, tuple[Callable[[float], float], float]] = {
    "jnp.tanh({})": (lambda m: 1, 1),
    "jnp.sin({})": (lambda m: 1, 1),
    "jnp.cos({})": (lambda m: 1, 1),
    "lax.tan(jnp.tanh({}))": (lambda m: 1.6, 3.5),
    "jnp.exp(-jnp.abs({}))": (lambda m: 1, 1),
    "jnp.expm1(-jnp.abs({}))": (lambda m: 1, 1),
    "jnp.log1p(jnp.abs({}))": (math.log1p, 1),
    "jnp.log(1 + jnp.abs({}))": (math.log1p, 1),
    "jnp.sqrt(1 + jnp.abs({}))": (lambda m: math.sqrt(1 + m), 0.5),
    "lax.rsqrt(1 + jnp.abs({}))": (lambda m: 1, 0.5),
    "lax.cbrt(1 + jnp.abs({}))": (lambda m: 1 + m, 0.5),
    "lax.logistic({})": (lambda m: 1, 0.25),
    "lax.erf({})": (lambda m: 1, 1.2),
    "lax.erfc({})": (lambda m: 2, 1.2),
    "lax.erf_inv(jnp.tanh({}) / 2)": (lambda m: 1, 1),
    "lax.lgamma(1 + jnp.abs(jnp.clip({}, -9, 9)))": (lambda m: 16, 2.5),
    "lax.digamma(1 + jnp.abs({}))": (lambda m: 1 + math.log1p(m), 2),
    "lax.asinh({})": (lambda m: math.asinh(m), 1),
    "lax.acosh(2 + jnp.abs({}))": (lambda m: math.acosh(2 + m), 1),
    "lax.atanh(jnp.tanh({}) / 2)": (lambda m: 0.6, 1),
    "lax.asin(jnp.tanh({}) / 2)": (lambda m: 0.6, 1),
    "lax.acos(jnp.tanh({}) / 2)": (lambda m: 2.2, 1),
    "lax.atan({})": (lambda m: 1.6, 1),
    "lax.sinh(jnp.clip({}, -2, 2))": (lambda m: 4, 4),
    "lax.cosh(jnp.clip({}, -2, 2))": (lambda m: 4, 4),
    "lax.bessel_i1e({})": (lambda m: 1, 1),
    "lax.bessel_i0e({})": (lambda m: 1, 1),
    "special.polygamma(1, 1 + jnp.abs({}))": (lambda m: 2, 3),
    "jax.nn.gelu({})": (lambda m: 1 + m, 1.2),
    "jax.nn.softplus({})": (lambda m: 1 + m, 1),
}
# Of two arguments, both of which are brought to [-3, 3].
_FUNCTIONS_OF_TWO: dict[str, tuple[float, float]] = {
    "lax.zeta(2 + jnp.abs({}), 1 + jnp.abs({}))": (2, 6),
    "lax.atan2({}, 1 + jnp.abs({}))": (1.6, 2),
    "lax.pow(1 + jnp.abs({}), {})": (64, 256),
    "lax.igamma(1 + jnp.abs({}), jnp.abs({}))": (1, 2),
    "lax.igammac(1 + jnp.abs({}), jnp.abs({}))": (1, 2),
    "jnp.logaddexp({}, {})": (4, 2),
    "jnp.hypot(1 + {}, {})": (6, 2),
}


@kind
def function(d: Drawing) -> None:
    x = d.value("f")
    text = d.choose(list(_FUNCTIONS))
    bound, slope = _FUNCTIONS[text]
    d.put(text.format(x), [x], max(1, bound(x.bound)), slope * x.error, rounds=FUNCTION_ROUNDS, whole=False)


@kind
def function_of_two(d: Drawing) -> None:
    x = d.within(d.value("f"), 3)
    y = d.within(d.array(x.shape, x.dtype), 3)
    text = d.choose(list(_FUNCTIONS_OF_TWO))
    bound, slope = _FUNCTIONS_OF_TWO[text]
    error = slope * (x.error + y.error)
    d.put(text.format(x, y), [x, y], bound, error, rounds=FUNCTION_ROUNDS * 2, whole=False)


@kind
def nextafter(d: Drawing) -> None:
    x = d.value("f", exact=True)
    y = d.array(x.shape, x.dtype, exact=True)
    if x.dtype != "float32":
        raise NotDrawn
    d.put(f"lax.nextafter({x}, {y})", [x, y], x.bound + 1, whole=False)


@kind
def arithmetic(d: Drawing) -> None:
    x = d.value("fiuc")
    y = d.array(x.shape, x.dtype)
    op = d.choose("+-*/")
    if op == "*":
        x, y = (x, y) if x.kind in "iu" else (d.within(x, 100), d.within(y, 100))
        error = x.bound * y.error + y.bound * x.error + x.error * y.error
        # The four products of complex numbers may cancel.
        d.put(f"{x} * {y}", [x, y], x.bound * y.bound * (2 if x.kind == "c" else 1), error, rounds=2)
    elif op == "/" and x.kind == "f":
        d.put(f"{x} / (1 + jnp.abs({y}))", [x, y], x.bound, x.error + x.bound * y.error, rounds=2, whole=False)
    else:
        d.put(f"{x} {'-' if op == '-' else '+'} {y}", [x, y], x.bound + y.bound, x.error + y.error)


@kind
def with_a_scalar(d: Drawing) -> None:
    x = d.value("fi")
    c = d.number(-3, 3)
    text = d.choose([f"{x} + {c}", f"{x} * {c}", f"{c} - {x}", f"jnp.maximum({x}, {c})"])
    d.put(text, [x], max(4, x.bound * 3, x.bound + 3), 3 * x.error)


@kind
def sign_and_size(d: Drawing) -> None:
    x = d.value("fi")
    text = d.choose(["-{}", "jnp.abs({})", "jnp.maximum({}, 0)", "jnp.minimum({}, 1)"])
    d.put(text.format(x), [x], max(1, x.bound), x.error)


@kind
def larger_and_smaller(d: Drawing) -> None:
    x = d.value("fiu")
    y = d.array(x.shape, x.dtype)
    op = d.choose(["jnp.maximum", "jnp.minimum"])
    d.put(f"{op}({x}, {y})", [x, y], max(x.bound, y.bound), max(x.error, y.error))


@kind
def rounding(d: Drawing) -> None:
    x = d.value("f", exact=True)
    text = d.choose(["jnp.floor({} / 2)", "jnp.ceil({} / 2)", "jnp.round({} / 2)", "lax.round({} / 2)", "jnp.sign({})"])
    d.put(text.format(x), [x], max(1, x.bound))


@kind
def remainder(d: Drawing) -> None:
    x = d.value("fiu", exact=True)
    d.put(f"lax.rem({x}, jnp.asarray({d.number(2, 7)}, {x}.dtype))", [x], max(7, x.bound))


@kind
def cube(d: Drawing) -> None:
    x = d.within(d.value("fi"), 10)
    d.put(f"lax.integer_pow({x}, 3)", [x], x.bound**3, 3 * (x.bound + x.error) ** 2 * x.error, rounds=2)


@kind
def reduce_precision(d: Drawing) -> None:
    x = d.value("f", exact=True)
    d.put(f"lax.reduce_precision({x}, 8, {d.choose([7, 3])})", [x], 2 * x.bound)


@kind
def bits(d: Drawing) -> None:
    x = d.value("iu")
    y = d.array(x.shape, x.dtype)
    two = ["{} & {}", "{} | {}", "{} ^ {}", "lax.shift_left({}, {} & 3)", "lax.shift_right_arithmetic({}, {} & 3)"]
    one = ["~{}", "lax.population_count({})", "lax.clz({})"]
    text = d.choose([*two, *one, "lax.shift_right_logical({}, {} & 3)"])
    d.put(text.format(x, y), [x] if text in one else [x, y], 2.0**32)


@kind
def integer_division(d: Drawing) -> None:
    x = d.value("iu")
    y = d.array(x.shape, x.dtype)
    op = d.choose(["lax.div", "lax.rem", "jnp.floor_divide"])
    d.put(f"{op}({x}, ({y} & 7) + 1)", [x, y], 2.0**32)


@kind
def comparison(d: Drawing) -> None:
    x = d.value("fiub", exact=True)
    y = d.array(x.shape, x.dtype, exact=True)
    ops = ["{} < {}", "{} >= {}", "{} == {}", "{} != {}"] if x.kind != "b" else ["{} & {}", "{} ^ {}", "{} | ~{}"]
    d.put(d.choose(ops).format(x, y), [x, y])


@kind
def selection(d: Drawing) -> None:
    x = d.value("fiubc")
    y = d.array(x.shape, x.dtype)
    flags = d.array(d.choose([x.shape, ()]), "bool")
    d.put(f"lax.select({flags}, {x}, {y})", [flags, x, y], max(x.bound, y.bound), max(x.error, y.error))


@kind
def clamping(d: Drawing) -> None:
    x = d.value("fi")
    low, high = d.array((), x.dtype), d.array((), x.dtype)
    bound, error = max(x.bound, low.bound, high.bound), max(x.error, low.error, high.error)
    d.put(f"lax.clamp({low}, {x}, {high})", [low, x, high], bound, error)


@kind
def conversion(d: Drawing) -> None:
    x = d.value("fiub")
    to = d.choose(["float32", "bfloat16", "float16", "int8", "uint8", "int32", "bool"])
    if to in ("int8", "uint8", "int32", "bool") and x.kind == "f":
        if x.error:
            raise NotDrawn
        x = d.within(x, 100)
        x = d.put(f"jnp.abs({x})", [x], x.bound) if to == "uint8" else x
    elif to in ("float32", "bfloat16", "float16"):
        x = d.within(x, 1000) if x.kind != "b" else x
    d.put(f"{x}.astype('{to}')", [x], x.bound if to != "bool" else 1, x.error)


@kind
def bitcast(d: Drawing) -> None:
    x = d.value("fiu", exact=True)
    # Zeros have two signs, of which a sum over devices may give either.
    to = {
        "float32": "lax.bitcast_convert_type(jnp.abs({}), jnp.int32)",
        "int8": "lax.bitcast_convert_type({}, jnp.uint8)",
        "uint8": "lax.bitcast_convert_type({}, jnp.int8)",
        "int32": "lax.bitcast_convert_type({}, jnp.uint8)",
    }
    if x.dtype not in to:
        raise NotDrawn
    d.put(to[x.dtype].format(x), [x], 2.0**32)


@kind
def complex_numbers(d: Drawing) -> None:
    if d.flag():
        x = d.value("f")
        if x.dtype != "float32":
            raise NotDrawn
        y = d.array(x.shape, x.dtype)
        d.put(f"lax.complex({x}, {y})", [x, y], x.bound + y.bound, x.error + y.error)
        return
    x = d.value("c")
    text = d.choose(["jnp.real({})", "jnp.imag({})", "jnp.conj({})", "jnp.abs({})", "jnp.exp(1j * jnp.real({}))"])
    whole = "abs" not in text and "exp" not in text
    d.put(text.format(x), [x], max(1, x.bound), x.error, rounds=1 if whole else FUNCTION_ROUNDS, whole=whole)


@kind
def finiteness(d: Drawing) -> None:
    x = d.value("f")
    d.put(f"jnp.isfinite(jnp.where({x} > 10000, jnp.inf, {x}))", [x])


# What moves elements


def moved(d: Drawing, text: str, x: Value, *others: Value) -> Value:
    """A step whose result has elements of its operands, and zeros."""
    of = [x, *others]
    return d.put(text, of, max(1, *(v.bound for v in of)), max(v.error for v in of), rounds=0)


@kind
def transpose(d: Drawing) -> None:
    x = d.value("fiubc", 2)
    moved(d, f"jnp.transpose({x}, {tuple(d.draw(st.permutations(range(x.rank))))})", x)


@kind
def reshape(d: Drawing) -> None:
    x = d.value("fiubc", 1, empty=True)
    rest, shape = x.size, []
    while rest > 1 and len(shape) < 4:
        shape.append(d.choose([f for f in (rest, 2, 4, 3, 8, 1, 5, 16) if rest % f == 0]))
        rest //= shape[-1]
    moved(d, f"{x}.reshape({(*shape, rest)})", x)


@kind
def broadcast(d: Drawing) -> None:
    x = d.value("fiubc", 0, 3)
    shape = [d.choose([8, 4, 3, 1, 5]) if size == 1 else size for size in x.shape]
    dims, place = list(range(x.rank)), d.number(0, x.rank)
    shape.insert(place, d.choose([8, 2, 1, 4, 7]))
    moved(d, f"lax.broadcast_in_dim({x}, {shape}, {[dim + (dim >= place) for dim in dims]})", x)


@kind
def slice_(d: Drawing) -> None:
    x = d.value("fiubc", 1)
    parts = []
    for size in x.shape:
        start = d.number(0, size - 1) if d.flag() else 0
        parts.append(f"{start}:{d.number(start + 1, size) if d.flag() else size}:{d.choose([1, 1, 2, 3])}")
    moved(d, f"{x}[{', '.join(parts)}]", x)


@kind
def pad(d: Drawing) -> None:
    x = d.value("fiuc", 1)
    amounts = [(d.choose([0, 0, 1, -1, 4]), d.choose([0, 0, 2, -1]), d.choose([0, 0, 1])) for _ in x.shape]
    if any(size + low + high < 0 for size, (low, high, _) in zip(x.shape, amounts, strict=True)):
        raise NotDrawn  # more is cut off than there is
    moved(d, f"lax.pad({x}, jnp.zeros((), {x}.dtype), {amounts})", x)


@kind
def concatenate(d: Drawing) -> None:
    x = d.value("fiubc", 1, empty=True)
    dim = d.number(0, x.rank - 1)
    sizes = [d.choose([x.shape[dim], 4, 1, 3, 8]) for _ in range(d.number(1, 2))]
    others = [d.array((*x.shape[:dim], size, *x.shape[dim + 1 :]), x.dtype) for size in sizes]
    moved(d, f"jnp.concatenate([{', '.join(map(str, [x, *others]))}], {dim})", x, *others)


@kind
def reverse(d: Drawing) -> None:
    x = d.value("fiubc", 1)
    moved(d, f"lax.rev({x}, {d.dims(x)})", x)


@kind
def roll(d: Drawing) -> None:
    x = d.value("fiubc", 1)
    moved(d, f"jnp.roll({x}, {d.number(1, 5)}, {d.number(0, x.rank - 1)})", x)


@kind
def iota(d: Drawing) -> None:
    x = d.value("fiu", 1)
    dim = d.number(0, x.rank - 1)
    bound = x.bound + x.shape[dim]
    d.put(f"{x} + lax.broadcasted_iota({x}.dtype, {x}.shape, {dim})", [x], bound, x.error)


@kind
def triangle(d: Drawing) -> None:
    x = d.value("fiub", 2)
    moved(d, f"jnp.{d.choose(['tril', 'triu'])}({x}, {d.number(-1, 2)})", x)


@kind
def dynamic_slice(d: Drawing) -> None:
    x, i = d.value("fiubc", 1), d.array((), "int32")
    dim = d.number(0, x.rank - 1)
    size = d.choose([1, max(1, x.shape[dim] // 2), x.shape[dim]])
    moved(d, f"lax.dynamic_slice_in_dim({x}, {i}, {size}, {dim})", x, i)


@kind
def dynamic_update_slice(d: Drawing) -> None:
    x, i = d.value("fiubc", 1), d.array((), "int32")
    dim = d.number(0, x.rank - 1)
    size = d.choose([1, max(1, x.shape[dim] // 2), x.shape[dim]])
    update = d.array((*x.shape[:dim], size, *x.shape[dim + 1 :]), x.dtype)
    moved(d, f"lax.dynamic_update_slice_in_dim({x}, {update}, {i}, {dim})", x, update, i)


@kind
def barrier(d: Drawing) -> None:
    x = d.value("fiubc")
    moved(d, f"lax.optimization_barrier({x})", x)


# Control flow


@kind
def loop(d: Drawing) -> None:
    x = d.within(d.value("f"), 30)
    y = d.array(x.shape, x.dtype)
    text = f"lax.fori_loop(0, 3, lambda i, c: c + {y} * i, {x})"
    d.put(text, [x, y], x.bound + 3 * y.bound, x.error + 3 * y.error, rounds=3)


@kind
def scan(d: Drawing) -> None:
    x = d.within(d.value("f", 1), 30)
    text = f"lax.scan(lambda c, each: (c + each, c * 2), {x}[0], {x})[{d.number(0, 1)}]"
    steps = x.shape[0] + 2
    d.put(text, [x], 2 * steps * x.bound, 2 * steps * x.error, rounds=steps)


@kind
def condition(d: Drawing) -> None:
    x, flag = d.value("fi"), d.array((), "bool")
    d.put(f"lax.cond({flag}, lambda: {x} * 2, lambda: {x} - 1)", [flag, x], 2 * x.bound + 1, 2 * x.error)
