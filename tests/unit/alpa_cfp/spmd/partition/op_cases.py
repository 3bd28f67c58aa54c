"""One small program for each kind of op that `partition` rewrites, grouped as its modules are.

In each group the name says what is computed.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from unit.alpa_cfp.spmd.helpers import Case

_RNG = np.random.default_rng(0)


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return _RNG.standard_normal(shape).astype(dtype)


def integers(low: int, high: int, *shape: int, dtype: Any = np.int32) -> np.ndarray:
    return _RNG.integers(low, high, shape).astype(dtype)


def flags(*shape: int) -> np.ndarray:
    return _RNG.integers(0, 2, shape).astype(bool)


WORKED = "along which it works, is split"
LOOP = "it works along a dim that is split"
# On CPUs a call of a library for each matrix, and ops around it.
LIBRARY = f"{WORKED}|operand and result are split differently|split over devices|{LOOP}"
WHOLE = "is split and not taken whole|is split and not set whole"

A, B = normal(8, 16), normal(8, 16)
ROW = normal(16)
GRID = normal(8, 8, 8)
COUNT = np.arange(128, dtype=np.float32).reshape(8, 16)
EVERY_THIRD = COUNT % 3 == 0
# A batch of positive definite matrices.
MATRICES = np.einsum("abij,abkj->abik", *[normal(2, 8, 4, 4)] * 2) + 4 * np.eye(4, dtype=np.float32)
# No mesh divides the dims that a window moves over.
ODD = normal(8, 7, 7)


# What a branch is refused for: communication in it, or a result that another branch gives with another sharding.
BRANCH = "is inside|with another sharding"


def _cond(flag: jax.Array, x: jax.Array) -> jax.Array:
    doubled = x @ x.T
    return lax.cond(flag[0] > 0, lambda: doubled * 2, lambda: doubled - 1)


_STRUCTURE: dict[str, Any] = {
    "elementwise": (lambda a, b: jnp.where(a > b, jnp.exp(a), jnp.tanh(b)) * a - b / (1 + a * a), (A, B), None),
    "scalar operands": (lambda a, b: jnp.clip(jnp.where(b[0, 0] > 0, a, b), -0.5, 0.5), (A, B), WORKED),
    "integers and bits": (
        lambda a, b: (a & b) + lax.population_count(a) + (a >> 1) * (b % 5),
        (integers(0, 99, 8, 16), integers(0, 99, 8, 16)),
        None,
    ),
    "complex": (
        lambda a, b: jnp.imag(lax.complex(a, b) * lax.complex(b, -a)) + jnp.abs(lax.complex(a, b)),
        (A, B),
        None,
    ),
    "bfloat16": (
        lambda a, b: a * b + 1,
        (A.astype(jnp.bfloat16), B.astype(jnp.bfloat16)),
        None,
    ),
    "bitcast": (lambda a: lax.bitcast_convert_type(a, jnp.int32) + 1, (A,), None),
    "bitcast to another rank": (
        lambda a: lax.bitcast_convert_type(a, jnp.uint8),
        (A,),
        "changes the rank|split differently",
    ),
    "erf": (lambda a, b: lax.erf(a) + lax.erf(a * b), (A, B), None),
    "other functions without a rule": (
        lambda a, b: (lax.lgamma(abs(a)) + lax.digamma(abs(b) + 1), lax.asinh(a), lax.nextafter(a, b), lax.tan(b)),
        (A, B),
        None,
    ),
    "optimization barrier": (lambda a, b: lax.optimization_barrier((a * 2, b.T)), (A, B), None),
    "splat constant": (lambda a: a + jnp.full((8, 16), 3.5), (A,), None),
    "constant": (lambda a, c=COUNT: a * c + c, (A,), None),
    "constant of booleans": (lambda a, c=EVERY_THIRD: jnp.where(c, a, 0), (A,), None),
    "iota": (
        lambda a: a + lax.broadcasted_iota(jnp.float32, (8, 16), 0) * lax.broadcasted_iota(jnp.int32, (8, 16), 1),
        (A,),
        None,
    ),
    "iota of bfloat16": (lambda a: a + lax.iota(jnp.bfloat16, 2048), (np.zeros(2048, jnp.bfloat16),), None),
    "iota of bytes": (lambda a: a + lax.iota(jnp.uint8, 512), (np.zeros(512, np.uint8),), None),
    "iota of complex": (lambda a: a * lax.iota(jnp.complex64, 16), (ROW,), None),
    "broadcast": (lambda r: jnp.broadcast_to(r[:, None, None], (8, 16, 4)) + r[0], (normal(8),), WORKED),
    "broadcast of dims of size 1": (lambda r: jnp.broadcast_to(r, (8, 16)), (normal(8, 1),), None),
    "transpose": (lambda g: jnp.transpose(g, (2, 0, 1)), (GRID,), None),
    "reshape, merging": (lambda g: g.reshape(8, 64) * 2, (GRID,), None),
    "reshape, splitting": (lambda a: a.reshape(8, 4, 4) * 2, (A,), None),
    "reshape, regrouping": (lambda a: a.reshape(32, 4) * 2, (A,), None),
    "reshape with dims of size 1": (lambda a: (a.reshape(8, 1, 16, 1) + 1).reshape(1, 8, 16), (A,), None),
    "slice of one dim": (lambda g: g[:, 2:6] * 2, (GRID,), WORKED),
    "slice with steps": (lambda g: g[::2, :, 1::3], (GRID,), WORKED),
    "pad": (lambda g: jnp.pad(g, ((0, 0), (1, 2), (0, 0)), constant_values=3), (GRID,), WORKED),
    "pad inside and negatively": (lambda g: lax.pad(g, 0.5, ((0, 0, 0), (-1, 0, 1), (0, 0, 0))), (ODD,), None),
    "concatenate": (lambda a, b: jnp.concatenate([a, b, a], 1), (A, B), WORKED),
    "reverse": (lambda g: jnp.flip(g, 1), (GRID,), WORKED),
    "sort": (lambda g: jnp.sort(g, axis=1), (GRID,), WORKED),
    "sort by keys": (lambda a, b: lax.sort((a, b), dimension=1, num_keys=1), (A, B), WORKED),
    "argsort": (lambda a: jnp.argsort(a, axis=0), (A,), WORKED),
    "cumsum": (lambda g: jnp.cumsum(g, axis=1), (GRID,), WORKED),
    "dynamic slice": (
        lambda g, i: lax.dynamic_slice(g, (0, i[0], 0), (8, 4, 8)),
        (GRID, np.array([9], np.int32)),
        f"{WORKED}|{WHOLE}",
    ),
    "dynamic update slice": (
        lambda g, u, i: lax.dynamic_update_slice(g, u, (0, i[0], 0)),
        (GRID, normal(8, 4, 8), np.array([3], np.int32)),
        f"{WORKED}|{WHOLE}",
    ),
    "max pool over a split dim": (
        lambda g: lax.reduce_window(g, -jnp.inf, lax.max, (1, 2, 1), (1, 2, 1), "VALID"),
        (GRID,),
        WORKED,
    ),
    "max pool": (
        lambda g: lax.reduce_window(g, -jnp.inf, lax.max, (1, 3, 3), (1, 2, 2), "VALID"),
        (ODD,),
        None,
    ),
    "max pool's gradient": (
        jax.grad(lambda g: (lax.reduce_window(g, -jnp.inf, lax.max, (1, 2, 2), (1, 2, 2), "SAME") ** 2).sum()),
        (ODD,),
        f"is not divided by|{WORKED}",
    ),
    "average pool, overlapping": (
        lambda g: lax.reduce_window(g, 0.0, lax.add, (1, 3, 1), (1, 1, 1), ((0, 0), (1, 1), (0, 0))),
        (GRID,),
        WORKED,
    ),
    "scan": (
        lambda a, b: lax.scan(lambda c, x: (c + x, c.sum()), a[0], b),
        (A, B),
        f"{LOOP}|{WORKED}",
    ),
    "cond": (_cond, (np.ones(1, np.int32), A), f"{BRANCH}|{WORKED}"),
    "cholesky": (lambda a: jnp.linalg.cholesky(a @ a.T + 9 * jnp.eye(8)), (A,), "is not covered|split over devices"),
    "cholesky of a batch": (lambda m: jnp.linalg.cholesky(m), (MATRICES,), LIBRARY),
    "qr of a batch": (lambda m: jnp.linalg.qr(m), (MATRICES,), LIBRARY),
    "eigenvalues of a batch": (lambda m: jnp.linalg.eigh(m)[0], (MATRICES,), LIBRARY),
    "solve of a batch": (lambda m, b: jnp.linalg.solve(m, b), (MATRICES, normal(2, 8, 4, 3)), LIBRARY),
    "top k": (lambda a: lax.top_k(a, 3), (A,), WORKED),
    "fourier transform": (lambda a: jnp.abs(jnp.fft.fft(a, axis=1)), (A,), WORKED),
    "fourier transform of reals": (lambda g: jnp.abs(jnp.fft.rfft2(g)), (GRID,), WORKED),
    "fourier transform back to reals": (
        lambda a, b: jnp.fft.irfft(lax.complex(a, b), axis=0),
        (A, B),
        WORKED,
    ),
}


def _until_small(a: jax.Array) -> jax.Array:
    return lax.while_loop(lambda c: jnp.abs(c).max() > 0.1, lambda c: c * 0.5, a)


def _nested(a: jax.Array, b: jax.Array) -> Any:
    def outer(i: Any, carried: Any) -> Any:
        a, b = carried
        return b + i, lax.fori_loop(0, 2, lambda j, c: jnp.sin(c) * j, a)

    return lax.fori_loop(0, 3, outer, (a, b))


def _gradients_of_recurrence(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A bias and weights that each step uses: their gradients are sums over the steps and the samples."""

    def loss(w: jax.Array, bias: jax.Array) -> jax.Array:
        def step(c: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
            c = jnp.tanh(x @ w * scale + bias) * 0.5 + c
            return c, c.mean()

        c, means = lax.scan(step, x, jnp.arange(3.0))
        return (c**2).mean() + means.sum()

    return jax.grad(loss, argnums=(0, 1))(w, w[0])


def _gradients_of_layers(x: jax.Array, up: jax.Array, down: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Layers in a scan: the gradients of each are written into a stack."""

    def loss(weights: tuple[jax.Array, jax.Array]) -> jax.Array:
        def layer(c: jax.Array, of_layer: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            return c + jnp.tanh(c @ of_layer[0]) @ of_layer[1] * 0.1, None

        return (lax.scan(layer, x, weights)[0] ** 2).mean()

    return jax.grad(loss)((up, down))


def _nested_sums(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    def outer(i: jax.Array, carried: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        total, c = carried
        inner = lax.fori_loop(0, 2, lambda j, s: s + (c * j).sum(0), jnp.zeros(16))
        return total + inner, c * 0.5 + b

    return lax.fori_loop(0, 3, outer, (b[0], a))


_LOOPS: dict[str, Any] = {
    "elementwise loop": (lambda a: lax.fori_loop(0, 3, lambda i, c: c * 0.5 + i, a), (A,), None),
    "carried arrays that change places": (
        lambda a, b: lax.fori_loop(0, 3, lambda i, c: (c[1] + 1, c[0] * i), (a, b)),
        (A, B),
        None,
    ),
    "a carried array that is transposed": (
        lambda g: lax.fori_loop(0, 3, lambda i, c: c.transpose(0, 2, 1) * 0.5 + i, g),
        (GRID,),
        LOOP,
    ),
    "a count of positions": (lambda a: lax.fori_loop(0, 3, lambda i, c: c + lax.iota(jnp.float32, 16), a), (A,), None),
    "a constant": (lambda a, c=COUNT: lax.fori_loop(0, 3, lambda i, x: x * 0.5 + c, a), (A,), None),
    "nested": (_nested, (A, B), None),
    "until a norm is small": (_until_small, (A,), LOOP),
    "a sum along one dim": (
        lambda a: lax.fori_loop(0, 3, lambda i, c: c * 0.5 + c.sum(1, keepdims=True), a),
        (A,),
        None,
    ),
    "the largest along one dim": (
        lambda a: lax.fori_loop(0, 3, lambda i, c: c * 0.5 + c.max(0, keepdims=True), a),
        (A,),
        None,
    ),
    "gradients that are added up": (_gradients_of_recurrence, (A, normal(16, 16)), f"{LOOP}|{WORKED}"),
    "gradients that are stacked": (_gradients_of_layers, (A, normal(3, 16, 32), normal(3, 32, 16)), f"{LOOP}|{WORKED}"),
    "a decaying sum that begins with a value": (
        lambda a, b, c: lax.fori_loop(0, 3, lambda i, s: s * 0.5 + jnp.exp(a * i).T @ b, c),
        (A, B, normal(16, 16)),
        LOOP,
    ),
    "a sum that some steps leave out": (
        lambda a, b: lax.fori_loop(
            0, 3, lambda i, s: jnp.where(i == 1, s, s + jnp.exp(a * i).T @ b), jnp.zeros((16, 16))
        ),
        (A, B),
        LOOP,
    ),
    "a product with a sum in each step": (
        lambda a, b: lax.fori_loop(0, 3, lambda i, c: c * jnp.exp(b * i).sum(0) / 9, a[0]),
        (A, B),
        LOOP,
    ),
    "sums that are used while they grow": (
        lambda a, b: lax.fori_loop(0, 3, lambda i, c: (c[0] + b.sum(0), c[1] + jnp.sin(c[0])), (a[0], b)),
        (A, B),
        LOOP,
    ),
    "sums in two loops, one in the other": (_nested_sums, (A, B), LOOP),
    "a product for each sample": (
        lambda a, w: lax.fori_loop(0, 3, lambda i, c: jnp.tanh(c @ w), a),
        (A, normal(16, 16)),
        LOOP,
    ),
    "results that are stacked": (
        lambda a, b: lax.scan(lambda c, x: (c + x, c * x), a, jnp.stack([a, b])),
        (A, B),
        f"{LOOP}|{WORKED}",
    ),
    "random numbers": (
        lambda a, k: a * jax.random.uniform(k, a.shape),
        (A, np.array([0, 7], np.uint32)),
        f"{LOOP}|{WORKED}",
    ),
}


def _batch_norm(x: jax.Array, scale: jax.Array) -> jax.Array:
    mean = x.mean(0, keepdims=True)
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(0, keepdims=True) + 1e-5) * scale


def conv(
    image: jax.Array, kernel: jax.Array, *, stride: int = 1, padding: Any = "SAME", groups: int = 1, dilation: int = 1
) -> jax.Array:
    """A 2D convolution, NHWC."""
    return lax.conv_general_dilated(
        image,
        kernel,
        (stride, stride),
        padding,
        rhs_dilation=(dilation, dilation),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def conv_gradients(**options: Any) -> Callable[..., Any]:
    return jax.grad(lambda image, kernel: (conv(image, kernel, **options) ** 2).sum(), argnums=(0, 1))


IMAGE, KERNEL = normal(8, 5, 5, 8), normal(3, 3, 8, 8)

GROUPS = "groups are split in|grouped channels|batch groups"

_CONTRACTIONS: dict[str, Any] = {
    "sum": (lambda g: g.sum((0, 2)), (GRID,), None),
    "sum of everything": (lambda g: g.sum(), (GRID,), None),
    "mean": (lambda a: a.mean(1), (A,), None),
    "sum that starts from a value": (lambda g: lax.reduce(g, 7.0, lax.add, (0, 1)), (GRID,), None),
    "maximum": (lambda g: g.max(1), (GRID,), None),
    "maximum that starts from a value": (lambda g: lax.reduce(g, 0.7, lax.max, (0, 2)), (GRID,), None),
    "minimum": (lambda g: g.min((1, 2)), (GRID,), None),
    "maximum of integers": (lambda i: i.max(0), (integers(-99, 99, 8, 16),), None),
    "sum of integers": (lambda i: i.sum(0), (integers(-99, 99, 8, 16),), None),
    "all": (lambda p: p.all(1), (flags(8, 8) | flags(8, 8) | flags(8, 8),), None),
    "any": (lambda p: p.any(0), (flags(8, 8) & flags(8, 8) & flags(8, 8),), None),
    "product": (lambda a: a.prod(1), (A,), None),
    "product that starts from a value": (lambda a: lax.reduce(a, 3.0, lax.mul, (1,)), (A,), None),
    "argmax": (lambda a: jnp.argmax(a, 1), (A,), None),
    "argmin of equal numbers": (lambda i: jnp.argmin(i, 0), (integers(0, 2, 8, 16),), None),
    "sum of two arrays at once": (
        lambda a, b: lax.reduce((a, b), (0.0, 0.0), lambda x, y: (x[0] + y[0], x[1] + y[1]), (0,)),
        (A, B),
        None,
    ),
    "softmax": (lambda a: jax.nn.softmax(a, 1), (A,), None),
    "variance": (_batch_norm, (A, ROW), None),
    "dot": (lambda a, w: a @ w, (A, normal(16, 8)), None),
    "dot of two sides' transposes": (lambda a, w: jnp.einsum("ka,bk->ab", a, w), (normal(16, 8), A), None),
    "dot of bfloat16": (
        lambda a, w: lax.dot_general(
            a.astype(jnp.bfloat16), w.astype(jnp.bfloat16), (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
        ),
        (A, normal(16, 8)),
        None,
    ),
    "dot of integers": (
        lambda a, w: lax.dot_general(a, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32),
        (integers(-9, 9, 8, 16, dtype=np.int8), integers(-9, 9, 16, 8, dtype=np.int8)),
        None,
    ),
    "dot with batch dims": (
        lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k),
        (normal(4, 8, 4, 4), normal(4, 8, 4, 4)),
        None,
    ),
    "dot over two dims": (lambda g, w: jnp.einsum("abc,bcd->ad", g, w), (GRID, normal(8, 8, 4)), None),
    "dot's gradients": (
        jax.grad(lambda a, w: (jnp.tanh(a @ w) ** 2).sum(), argnums=(0, 1)),
        (A, normal(16, 8)),
        None,
    ),
    "outer product": (lambda a, b: jnp.einsum("i,j->ij", a, b), (ROW, normal(8)), None),
    "convolution": (conv, (IMAGE, KERNEL), None),
    "convolution's gradients": (conv_gradients(), (IMAGE, KERNEL), None),
    "convolution with strides and padding": (
        lambda i, k: conv(i, k, stride=2, padding=((1, 0), (2, 1)), dilation=2),
        (IMAGE, KERNEL),
        None,
    ),
    "strided convolution's gradients": (
        conv_gradients(stride=2),
        (IMAGE, KERNEL),
        None,
    ),
    "grouped convolution": (
        lambda i, k: conv(i, k, groups=4),
        (IMAGE, normal(3, 3, 2, 8)),
        GROUPS,
    ),
    "grouped convolution's gradients": (
        conv_gradients(groups=4),
        (IMAGE, normal(3, 3, 2, 8)),
        GROUPS,
    ),
    "depthwise convolution": (
        lambda i, k: conv(i, k, groups=8),
        (IMAGE, normal(3, 3, 1, 16)),
        GROUPS,
    ),
    "depthwise convolution's gradients": (
        conv_gradients(groups=8),
        (IMAGE, normal(3, 3, 1, 16)),
        GROUPS,
    ),
}

TABLE = normal(16, 8)
# Numbers outside the table too: a lookup takes the nearest row or fills, an update is dropped.
TOKENS = np.concatenate([integers(0, 16, 28), np.array([-20, 17, -1, 300])]).astype(np.int32).reshape(8, 4)


def take(table: jax.Array, tokens: jax.Array, mode: str = "clip") -> jax.Array:
    """Rows by number as XLA's gather takes them, without JAX's own handling of negative numbers."""
    numbers = lax.GatherDimensionNumbers(offset_dims=(tokens.ndim,), collapsed_slice_dims=(0,), start_index_map=(0,))
    return lax.gather(table, tokens[..., None], numbers, (1, table.shape[1]), mode=mode)


def raw_take(table: jax.Array, tokens: jax.Array) -> jax.Array:
    """The op alone: JAX promises that all numbers are inside, so that the op's own clamping is what is seen."""
    return take(table, tokens, "promise_in_bounds")


def scatter(kind: str, target: jax.Array, tokens: jax.Array, updates: jax.Array) -> jax.Array:
    """Rows added, set, ... by number; those outside the target are dropped by the op itself."""
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=(tokens.ndim,), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
    )
    function = {"add": lax.scatter_add, "max": lax.scatter_max, "mul": lax.scatter_mul, "set": lax.scatter}[kind]
    return function(target, tokens[..., None], updates, numbers, mode="promise_in_bounds")


def _embedding_loss(table: jax.Array, tokens: jax.Array, weights: jax.Array) -> jax.Array:
    return (jnp.tanh(table[tokens]) * weights).sum()


WEIGHTS = normal(8, 4, 8)
UNIQUE = np.array([[3, 1], [99, 7], [15, 0], [12, -8]], np.int32)
SPLIT_UPDATES = "updates that are split are only summed|one update of a split dim"

_INDEXING: dict[str, Any] = {
    "lookup": (lambda t, i: t[i], (TABLE, TOKENS % 16), None),
    "lookup, clamped by the op": (raw_take, (TABLE, TOKENS), None),
    "lookup, filled outside": (lambda t, i: take(t, i, "fill"), (TABLE, TOKENS), None),
    "lookup of integers": (raw_take, (integers(-9, 9, 16, 8), TOKENS), None),
    "lookup of booleans": (raw_take, (flags(16, 8), TOKENS), None),
    "lookup of bfloat16": (raw_take, (TABLE.astype(jnp.bfloat16), TOKENS), None),
    "lookup by unsigned numbers": (
        raw_take,
        (TABLE, np.array([[1, 5, 2**32 - 1, 2**31], [15, 16, 0, 7]], np.uint32)),
        None,
    ),
    "lookup by bytes": (raw_take, (TABLE, np.array([[1, 5, -128, 127], [15, 16, 0, -7]], np.int8)), None),
    "lookup by unsigned bytes": (raw_take, (TABLE, np.array([[1, 5, 255, 128], [15, 16, 0, 7]], np.uint8)), None),
    "lookup of pairs": (lambda g, i: g[i[:, 0], i[:, 1]], (GRID, integers(0, 8, 16, 2)), None),
    "lookup of pairs, clamped by the op": (
        lambda g, i: lax.gather(
            g,
            i,
            lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0, 1), start_index_map=(1, 0)),
            (1, 1, 8),
            mode="promise_in_bounds",
        ),
        (GRID, integers(-5, 13, 16, 2)),
        None,
    ),
    "lookup of one row": (lambda t, i: t[i[0]], (TABLE, np.array([11], np.int32)), f"{WORKED}|{WHOLE}"),
    "lookup of parts of rows": (
        lambda g, i: lax.gather(
            g,
            i,
            lax.GatherDimensionNumbers(offset_dims=(1, 2), collapsed_slice_dims=(1,), start_index_map=(1, 2)),
            (8, 1, 3),
            mode="clip",
        ),
        (GRID, integers(-2, 9, 4, 2)),
        WHOLE,
    ),
    "lookup along an axis, with batch dims": (
        lambda a, i: jnp.take_along_axis(a, i, axis=1),
        (A, integers(0, 16, 8, 4)),
        None,
    ),
    "lookup's gradient": (jax.grad(_embedding_loss), (TABLE, TOKENS % 16, WEIGHTS), None),
    "lookup's gradient, numbers outside": (jax.grad(_embedding_loss), (TABLE, TOKENS, WEIGHTS), None),
    "lookup along an axis, gradient": (
        jax.grad(lambda a, i: (jnp.take_along_axis(a, i, axis=1) ** 3).sum()),
        (A, integers(0, 16, 8, 4)),
        None,
    ),
    "adding rows to an array": (lambda t, i, u: t.at[i].add(u), (TABLE, TOKENS % 16, WEIGHTS), None),
    "adding rows to zeros": (lambda i, u: jnp.zeros((16, 8)).at[i].add(u), (TOKENS % 16, WEIGHTS), None),
    "adding rows, outside ones dropped": (
        lambda t, i, u: scatter("add", t, i, u),
        (TABLE, TOKENS, WEIGHTS),
        None,
    ),
    "adding rows by unsigned numbers": (
        lambda t, i, u: scatter("add", t, i, u),
        (TABLE, np.array([[1, 5, 2**32 - 1, 2**31], [15, 16, 0, 7]], np.uint32), normal(2, 4, 8)),
        None,
    ),
    "adding rows by bytes": (
        lambda t, i, u: scatter("add", t, i, u),
        (TABLE, np.array([[1, 5, -128, 127], [15, 16, 0, -7]], np.int8), normal(2, 4, 8)),
        None,
    ),
    "adding rows of integers": (
        lambda t, i, u: scatter("add", t, i, u),
        (integers(-9, 9, 16, 8), TOKENS, integers(-9, 9, 8, 4, 8)),
        None,
    ),
    "greatest of rows": (lambda t, i, u: scatter("max", t, i, u), (TABLE, TOKENS, WEIGHTS), SPLIT_UPDATES),
    "product of rows": (lambda t, i, u: scatter("mul", t, i, u), (TABLE, TOKENS, WEIGHTS), SPLIT_UPDATES),
    "setting rows": (lambda t, i, u: scatter("set", t, i, u), (TABLE, UNIQUE, normal(4, 2, 8)), SPLIT_UPDATES),
    "setting one row": (
        lambda t, i, u: t.at[i[0]].set(u),
        (TABLE, np.array([5], np.int32), normal(8)),
        f"{WORKED}|{SPLIT_UPDATES}|{WHOLE}",
    ),
    "adding at pairs": (
        lambda g, i, u: g.at[i[:, 0], i[:, 1]].add(u),
        (GRID, integers(-9, 11, 16, 2), normal(16, 8)),
        None,
    ),
    "one-hot by comparing": (lambda i: jax.nn.one_hot(i, 16), (TOKENS,), None),
    "one-hot by scattering": (lambda i: jnp.zeros((16,), jnp.int32).at[i].add(1), (TOKENS,), None),
}

STRUCTURE, CONTRACTIONS, INDEXING, LOOPS = (
    {name: Case(*case) for name, case in group.items()} for group in (_STRUCTURE, _CONTRACTIONS, _INDEXING, _LOOPS)
)
