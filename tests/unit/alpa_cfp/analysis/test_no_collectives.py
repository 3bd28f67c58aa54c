"""The proof obligation of ParallelBlocks, with JAX's own types as the judge: `jax.sharding.no_collectives`.

In Explicit mode JAX derives the sharding of every value while it traces, and refuses an op that would communicate over
the axes that are named. A block is traced with its arguments sharded by a strategy, for every strategy.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from alpa_cfp.analysis.blocks import BlockFactor, Blocks, ParallelBlock
from alpa_cfp.analysis.contractions import Side
from unit.alpa_cfp.analysis.cutting import split_dims
from unit.alpa_cfp.analysis.programs import blocks_of

NO_COLLECTIVES: Any = getattr(jax.sharding, "no_collectives", None)
pytestmark = pytest.mark.skipif(NO_COLLECTIVES is None, reason="jax.sharding.no_collectives came with JAX 0.12")

AXES = ("x", "y")
ACTIVATIONS = jax.ShapeDtypeStruct((8, 4, 16), jnp.float32)
HEADS = jax.ShapeDtypeStruct((16, 8, 4), jnp.float32)
COLUMNS = jax.ShapeDtypeStruct((16, 32), jnp.float32)


def attention(summed: P | None, x: jax.Array, *weights: jax.Array) -> jax.Array:
    query, key, value = (jnp.einsum("bsd,dhk->bshk", x, weight, out_sharding=summed) for weight in weights)
    scores = jax.nn.softmax(jnp.einsum("bshk,bthk->bhst", query, key))
    return jnp.einsum("bhst,bthk->bshk", scores, value)


def dense(summed: P | None, x: jax.Array, weight: jax.Array) -> jax.Array:
    return jax.nn.gelu(jnp.einsum("bsd,df->bsf", x, weight, out_sharding=summed))


PROGRAMS: dict[str, tuple[Callable[..., jax.Array], Sequence[Any]]] = {
    "attention": (attention, (ACTIVATIONS, HEADS, HEADS, HEADS)),
    "dense": (dense, (ACTIVATIONS, COLUMNS)),
}


@cache
def block_of(name: str) -> tuple[Blocks, ParallelBlock]:
    function, arguments = PROGRAMS[name]
    blocks = blocks_of(lambda *args: function(None, *args), *arguments)
    (block,) = blocks.blocks
    return blocks, block


def spec(dims: dict[int, list[int]], rank: int) -> P:
    return P(*(tuple(AXES[axis] for axis in dims[dim]) if dims.get(dim) else None for dim in range(rank)))


def traced_without_collectives(name: str, factors: Sequence[BlockFactor]) -> P:
    """The sharding of the block's result where each mesh axis splits the factor of its place, as JAX derives it."""
    function, arguments = PROGRAMS[name]
    blocks, block = block_of(name)
    split = split_dims(blocks, block, [(factor, 2) for factor in factors])
    mesh = jax.make_mesh((2, 2), AXES, axis_types=(AxisType.Explicit,) * 2)
    sharded = [
        jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=NamedSharding(mesh, spec(split[value], each.ndim)))
        for value, each in enumerate(arguments)
    ]
    # JAX leaves to the program how a sum over split parts ends.
    (projection,) = blocks.graph.ops[block.entries[0].op].results
    sums = any(factor.side is Side.REDUCTION for factor in factors)
    summed = spec(split[projection], len(blocks.graph.shape(projection))) if sums else None
    with jax.set_mesh(mesh), NO_COLLECTIVES(frozenset(AXES)):
        return jax.jit(function, static_argnums=0).trace(summed, *sharded).out_info.sharding.spec


def choices(name: str) -> list[tuple[BlockFactor, ...]]:
    """Every choice of a usable factor for each mesh axis."""
    return list(itertools.product(block_of(name)[1].usable_factors, repeat=len(AXES)))


@pytest.mark.parametrize("name", PROGRAMS)
def test_jax_finds_no_communication_in_a_block_whose_strategy_has_no_partial_sum(name: str) -> None:
    blocks, block = block_of(name)
    (output,) = block.outputs
    tried = [factors for factors in choices(name) if all(factor.side is not Side.REDUCTION for factor in factors)]
    assert len(tried) >= 4
    for factors in tried:
        axes_of = {block.factors.index(factor): [] for factor in factors}
        for axis, factor in enumerate(factors):
            axes_of[block.factors.index(factor)].append(axis)
        dims = {dim: axes_of[factor] for dim, factor in output.dims if factor in axes_of}
        assert traced_without_collectives(name, factors) == spec(dims, len(blocks.graph.shape(output.value))), factors


@pytest.mark.parametrize("name", PROGRAMS)
def test_jax_finds_communication_in_a_block_whose_strategy_has_a_partial_sum(name: str) -> None:
    tried = [factors for factors in choices(name) if any(factor.side is Side.REDUCTION for factor in factors)]
    assert len(tried) >= 4
    for factors in tried:
        with pytest.raises(Exception, match="is forbidden by `no_collectives`"):
            traced_without_collectives(name, factors)
