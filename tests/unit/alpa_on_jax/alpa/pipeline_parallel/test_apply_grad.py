"""Sums over meshes in the update of the parameters: what alpa makes of a global norm can be traced, lowered and cut."""

from collections.abc import Sequence
from typing import Any

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa.pipeline_parallel.apply_grad import ApplyGradRewriter, cross_mesh_allreduce_p
from alpa.util import OrderedSet
from jax.core import gensym

from alpa_cfp.spmd.compile.phases import EXCHANGE


def squares(*gradients: jax.Array) -> jax.Array:
    """The square of their norm, as a chain of sums of scalars."""
    return sum((jnp.sum(g * g) for g in gradients[1:]), jnp.sum(gradients[0] * gradients[0]))


def rewritten(norm: Any = squares, meshes_of: Sequence[tuple[int, ...]] = ((0,), (0,), (1,), (1,))) -> tuple[Any, Any]:
    """The square of the norm of gradients that are on the given meshes each, and the meshes' numbers."""
    jaxpr = jax.make_jaxpr(norm)(*[jnp.ones((2, 3)) for _ in meshes_of])
    meshes = {var: OrderedSet(each) for var, each in zip(jaxpr.jaxpr.invars, meshes_of, strict=True)}
    # Meshes of variables are known where gradients come from; what is made of them follows.
    rewriter = ApplyGradRewriter(jaxpr, meshes)
    return rewriter.split_replicated_eqns(gensym(), 3)


def all_reduces(jaxpr: Any) -> list[Any]:
    return [eqn for eqn in jaxpr.eqns if eqn.primitive is cross_mesh_allreduce_p]


def test_a_chain_of_sums_over_two_meshes_becomes_one_all_reduce_with_hashable_parameters() -> None:
    jaxpr, groups = rewritten()
    (reduce,) = all_reduces(jaxpr)
    assert groups == ((0, 1),)
    assert reduce.params == {"type": jax.lax.add_p, "group_meshes": (0, 1)}
    hash(tuple(reduce.params.values()))


def test_a_constant_of_the_chain_is_added_on_a_mesh_that_has_a_part_of_the_sum() -> None:
    def norm(*gradients: jax.Array) -> jax.Array:
        return sum((jnp.sum(g * g) for g in gradients), jnp.float32(2))

    jaxpr, groups = rewritten(norm, ((1, 0), (2,)))
    (reduce,) = all_reduces(jaxpr)
    assert groups == ((1, 2),)
    assert len(reduce.invars) == 2
    assert not any(isinstance(operand, jax.core.Literal) for operand in reduce.invars)
    (added,) = [eqn for eqn in jaxpr.eqns if eqn.primitive is jax.lax.add_p]
    assert added.outvars[0] is reduce.invars[0]


def test_the_rewritten_update_is_traced_again() -> None:
    jaxpr, _ = rewritten()
    again = jax.make_jaxpr(jax.jit(jax.core.jaxpr_as_fun(jaxpr)))(*[jnp.ones((2, 3))] * 4)
    assert [v.aval.shape for v in again.jaxpr.outvars] == [()]


@pytest.mark.parametrize(
    ("primitive", "dtype", "what"),
    [(jax.lax.add_p, np.float32, "SUM"), (jax.lax.and_p, np.bool_, "AND"), (jax.lax.or_p, np.bool_, "OR")],
)
def test_an_all_reduce_over_meshes_lowers_to_one_barrier_that_says_what_to_do(
    primitive: Any, dtype: Any, what: str
) -> None:
    def function(x: jax.Array) -> jax.Array:
        return cross_mesh_allreduce_p.bind(x, type=primitive, group_meshes=(0, 2))

    text = jax.jit(function).lower(np.ones((), dtype)).as_text()
    assert text.count("stablehlo.optimization_barrier") == 1
    assert f'{EXCHANGE} = "{what};{alpa.util.mesh_ids_hash((0, 2)).decode()}"' in text
