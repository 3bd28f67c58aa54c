"""Alpa's stateful random ops (`stablehlo.rng`), made reproducible and independent of how the program is sharded.

Alpa traces `jax.random` into ops without a key, and its runtime gives every device a seed. Stock XLA has no such seed,
and gives each device other numbers even where devices must agree. So the op stays in the program while alpa works on
it, and just before compiling it becomes a function of a hidden last parameter, `[seed, number of the call]` (ui32[2]):
the bits of an element are Threefry-2x32 of that state, the op's number and the element's *global* index. Invariant: the
numbers depend on the seed, the call, the op and the element alone; a program draws the same ones on every mesh.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erfinv
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.builders import index, numpy_dtype
from alpa_cfp.spmd.ir.mlir import Operation, Value

_RNG = "stablehlo.rng"


def add_state_parameter(main: Operation) -> Value | None:
    """Give `main` the hidden parameter for the random state, if it draws random numbers."""
    block = mlir.entry_block(main)
    if not any(op.name == _RNG for op in mlir.inner_operations(main)):
        return None
    state_type = ir.RankedTensorType.get([2], ir.IntegerType.get_unsigned(32))
    attributes = mlir.function_arguments_attributes(main, "arg_attrs")
    state = block.add_argument(state_type, main.location)
    mlir.update_function_type(main)
    mlir.set_function_arguments_attributes(main, "arg_attrs", [*attributes, {}])
    return state


def draw(op: Operation, state: Value, number: int, local_type: Any, offsets: Sequence[Value]) -> Value:
    """The numbers of one device's part of `op`, at the current insertion point.

    Args:
        op: The `stablehlo.rng` op, whose result has the global shape.
        state: The hidden parameter.
        number: The op's number in the program.
        local_type: The type of the part.
        offsets: The start of the part in each dim (i32 scalars).
    """
    uniform = "UNIFORM" in str(op.attributes["rng_distribution"])
    dtype = numpy_dtype(local_type.element_type)
    shape = tuple(local_type.shape)
    global_shape = mlir.tensor_shape(op.results[0])

    def generate(low: jax.Array, high: jax.Array, state: jax.Array, *starts: jax.Array) -> jax.Array:
        bits = _bits(state, number, shape, global_shape, starts)
        return _uniform(bits, low, high) if uniform else low + high * _standard_normal(bits, dtype)

    scalar = jax.ShapeDtypeStruct((), dtype)
    signature = [scalar, scalar, jax.ShapeDtypeStruct((2,), np.uint32)]
    signature += [jax.ShapeDtypeStruct((), np.int32)] * len(shape)
    # JAX's lowering for CPU is plain StableHLO, which every platform compiles.
    lowered = jax.jit(generate, keep_unused=True).trace(*signature).lower(lowering_platforms=("cpu",))
    function = _adopt(op, str(lowered.compiler_ir("stablehlo")), f"rng_{number}")
    return func.CallOp([local_type], function, [op.operands[0], op.operands[1], state, *offsets]).results[0]


def _bits(
    state: jax.Array, number: int, shape: Sequence[int], global_shape: Sequence[int], starts: Sequence[jax.Array]
) -> jax.Array:
    """ui32[2, *shape]: two independent words for each element of a part, from its index in the global array."""
    key = jax.extend.random.threefry_2x32(state, jnp.array([number, 0x5EED], jnp.uint32))
    positions = [
        jax.lax.broadcasted_iota(jnp.uint32, shape, i) + start.astype(jnp.uint32) for i, start in enumerate(starts)
    ]
    # Two words hold the index: the first dim, and the place within it.
    first = positions[0] if positions else jnp.zeros((), jnp.uint32)
    within = jnp.zeros(shape, jnp.uint32)
    for position, size in zip(positions[1:], global_shape[1:], strict=True):
        within = within * jnp.uint32(size) + position
    words = jax.extend.random.threefry_2x32(key, jnp.stack([first, within]).reshape(-1))
    return words.reshape(2, *shape)


def _unit_interval(bits: jax.Array, dtype: np.dtype) -> jax.Array:
    """Floats in [0, 1) with as many random bits as the mantissa has (32 for float64)."""
    info = jnp.finfo(dtype)
    unsigned = np.dtype(f"uint{info.bits}")
    one = np.ones((), dtype).view(unsigned)
    used = min(info.nmant, 32)
    mantissa = (bits[0] >> np.uint32(32 - used)).astype(unsigned) << unsigned.type(info.nmant - used)
    return jax.lax.bitcast_convert_type(mantissa | one, dtype) - jnp.ones((), dtype)


def _uniform(bits: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    dtype = low.dtype
    if jnp.issubdtype(dtype, jnp.integer):
        # The width of the range need not fit the type itself: i8 from -100 to 100.
        word = jnp.uint64 if np.dtype(dtype).itemsize == 8 else jnp.uint32
        number = bits[0].astype(word) if word == jnp.uint32 else bits[0].astype(word) << 32 | bits[1].astype(word)
        return low + (number % (high.astype(word) - low.astype(word))).astype(dtype)
    return jnp.maximum(low, _unit_interval(bits, np.dtype(dtype)) * (high - low) + low)


def _standard_normal(bits: jax.Array, dtype: np.dtype) -> jax.Array:
    low = jnp.nextafter(jnp.array(-1, dtype), jnp.array(0, dtype))
    uniform = _uniform(bits, low, jnp.ones((), dtype))
    return jnp.array(np.sqrt(2), dtype) * erfinv(uniform)


def _adopt(op: Operation, text: str, name: str) -> str:
    """Take the functions of a lowered program into the module of `op`; the name of its main function there."""
    top = op
    while top.parent is not None:
        top = top.parent.operation
    body = top.regions[0].blocks[0]
    donor = mlir.parse(text)
    functions = mlir.functions(donor)
    renamed = {old: name if old == "main" else f"{name}_{old}" for old in functions}
    for old, function in functions.items():
        for inner in mlir.inner_operations(function):
            if inner.name == "func.call":
                callee = ir.FlatSymbolRefAttr(inner.attributes["callee"]).value
                inner.attributes["callee"] = ir.FlatSymbolRefAttr.get(renamed[callee])
        function.attributes["sym_name"] = ir.StringAttr.get(renamed[old])
        function.attributes["sym_visibility"] = ir.StringAttr.get("private")
        for kind in ("arg_attrs", "res_attrs"):
            if kind in function.attributes:
                del function.attributes[kind]
        body.append(function.detach_from_parent() or function)
    return name


def expand_whole(main: Operation, state: Value) -> None:
    """Expand every random op of a program that is not partitioned yet."""
    for number, op in enumerate([op for op in mlir.inner_operations(main) if op.name == _RNG]):
        with ir.InsertionPoint(op), op.location:
            tensor = mlir.tensor_type(op.results[0])
            offsets = [index(0) for _ in range(tensor.rank)]
            mlir.replace(op, draw(op, state, number, tensor, offsets))
