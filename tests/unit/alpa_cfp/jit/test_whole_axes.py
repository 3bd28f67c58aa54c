"""Shardings by parts of mesh axes become ones that a `PartitionSpec` can describe."""

from typing import Any

import jax
import jax.numpy as jnp

from alpa_cfp.jit.autoshard import use_whole_axes
from alpa_cfp.jit.tracing import TracedFunction, trace
from alpa_cfp.spmd.partition import partition
from alpa_cfp.spmd.propagation import propagate
from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis, LogicalMesh

MESH = LogicalMesh((8,))
WHOLE = Axis(0, 1, 8)


def annotated(fn: Any, *shapes: tuple[int, ...], dims: tuple[tuple[Axis, ...], ...]) -> TracedFunction:
    """The program of `fn`, whose first argument is split as `dims` say, with what propagation makes of that."""
    program = trace(fn, [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes], {}, (), "cpu")
    inputs = [ArraySharding(MESH, dims), *[None] * (len(shapes) - 1)]
    propagate(program.module, MESH, to_outputs=True, inputs=inputs)
    return program


def test_a_result_that_is_split_by_a_part_of_an_axis_is_not_split() -> None:
    program = annotated(lambda x: (jnp.tanh(x).reshape(4, 16), x + 1), (64,), dims=((WHOLE,),))
    assert program.module.input_shardings
    whole = program.module.input_shardings[0]
    # 64 columns in 8 parts are 4 rows of 2 parts each.
    parts = ArraySharding(MESH, ((Axis(0, 1, 4),), (Axis(0, 4, 2),)))
    program.module.output_shardings = (parts, whole)
    use_whole_axes(program)
    assert program.module.output_shardings == (ArraySharding.replicated(MESH, 2), whole)
    partitioned = partition(program.module)
    assert partitioned.output_shardings == program.module.output_shardings
    assert partitioned.input_shardings == (whole,)


def test_the_bits_of_a_random_key_stay_together() -> None:
    keys = jax.ShapeDtypeStruct((4,), jax.random.key(0).dtype)
    program = trace(lambda keys: keys, [keys], {}, (), "cpu")
    bits = ArraySharding(LogicalMesh((4, 2)), ((Axis(0, 1, 4),), (Axis(1, 1, 2),)))
    propagate(program.module, bits.mesh, to_outputs=True, inputs=[bits])
    use_whole_axes(program)
    together = ArraySharding(bits.mesh, ((Axis(0, 1, 4),), ()))
    assert (program.module.input_shardings, program.module.output_shardings) == ((together,), (together,))


def test_a_program_that_is_split_by_whole_axes_stays_as_it_is() -> None:
    program = annotated(lambda x, y: jnp.tanh(x) + y, (64,), (64,), dims=((WHOLE,),))
    before = program.module.bytecode
    use_whole_axes(program)
    assert program.module.bytecode is before
