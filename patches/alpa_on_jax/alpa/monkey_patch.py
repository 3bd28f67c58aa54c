"""Replacements in `alpa.monkey_patch`: the random functions and the embedding that alpa puts in while it traces.

Alpa traces dropout with XLA's stateful generator, because the stateless one of `jax.random` makes long graphs: while
tracing, `jax.random.uniform`, `normal`, `truncated_normal`, `bernoulli` and `fold_in` are the ones below, which ignore
the key. They take all arguments that today's functions take, since flax and others pass them. Embeddings are looked
up by a product with one-hot rows, in place of a gather, which alpa's strategies can partition along two mesh axes.

Invariant: after `restore_random()`, `jax.random` is what it was before the first `monkey_patch_random()`.
"""

from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Any

import flax
import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax._src import core, dtypes
from jax._src import random as jax_src_random
from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import hlo
from jax._src.random import core as jax_src_random_core

from alpa_on_jax.replacing import replace

# Everything that asks for a random number finds the function in one of these: users and flax in the first,
# initializers in the second, other random functions in the third.
_RANDOM_MODULES = (jax.random, jax_src_random, jax_src_random_core)


def apply(module: ModuleType) -> None:
    """Replace the random functions and their primitive's rules, and flax's embedding."""
    rng_normal_p = module.rng_normal_p
    rng_normal_p.def_abstract_eval(_rng_normal_abstract_eval)
    mlir.register_lowering(rng_normal_p, _rng_normal_lowering)

    def fast_normal(
        key: Any,
        shape: Sequence[int] = (),
        dtype: Any = None,
        mu: Any = 0.0,
        sigma: Any = 1.0,
        *,
        out_sharding: Any = None,
    ) -> jax.Array:
        """Normally distributed values of mean `mu` and deviation `sigma`; `key` and `out_sharding` are ignored."""
        dtype = _float_dtype(dtype)
        return rng_normal_p.bind(jnp.asarray(mu, dtype), jnp.asarray(sigma, dtype), shape=tuple(shape))

    fast = {
        "uniform": fast_uniform,
        "normal": fast_normal,
        "truncated_normal": partial(_fast_truncated_normal, fast_normal),
        "bernoulli": fast_bernoulli,
        "fold_in": module.remove_fold_in,
    }
    originals = {(target, name): getattr(target, name) for target in _RANDOM_MODULES for name in fast}

    def monkey_patch_random() -> None:
        """Put the stateful generators in."""
        for target, name in originals:
            setattr(target, name, fast[name])

    def restore_random() -> None:
        """Take the stateful generators out."""
        for (target, name), original in originals.items():
            setattr(target, name, original)

    def embed_call_one_hot(self: flax.linen.Embed, inputs: jax.Array) -> jax.Array:
        """Look the rows of `inputs` (any shape, integers) up; gives one dim more, of length `features`."""
        if not jnp.issubdtype(inputs.dtype, jnp.integer):
            raise ValueError("Input type must be an integer or unsigned integer.")
        # flax: without a dtype, the embedding's own.
        dtype = jnp.float16 if module.global_config.flax_always_use_fp16_embedding else self.dtype
        embedding = jnp.asarray(self.embedding, self.embedding.dtype if dtype is None else dtype)
        return jax.nn.one_hot(inputs, embedding.shape[0], dtype=embedding.dtype) @ embedding

    flax.linen.Embed.__call__ = embed_call_one_hot
    replace(
        module,
        fast_uniform,
        fast_normal,
        fast_bernoulli,
        monkey_patch_random,
        restore_random,
        embed_call_one_hot,
        fast_truncated_normal=fast["truncated_normal"],
        _rng_normal_abstract_eval=_rng_normal_abstract_eval,
        _rng_normal_lowering=_rng_normal_lowering,
    )


def fast_uniform(
    key: Any,
    shape: Sequence[int] = (),
    dtype: Any = None,
    minval: Any = 0.0,
    maxval: Any = 1.0,
    *,
    out_sharding: Any = None,
) -> jax.Array:
    """Values distributed evenly over [minval, maxval); `key` and `out_sharding` are ignored."""
    dtype = _float_dtype(dtype)
    return lax.rng_uniform(jnp.asarray(minval, dtype), jnp.asarray(maxval, dtype), tuple(shape))


def fast_bernoulli(
    key: Any, p: Any = 0.5, shape: Sequence[int] | None = None, mode: str = "low", *, out_sharding: Any = None
) -> jax.Array:
    """Booleans that are true with probability `p`; `key`, `mode` and `out_sharding` are ignored."""
    shape = np.shape(p) if shape is None else shape
    return fast_uniform(key, shape, dtypes.canonicalize_dtype(lax.dtype(p))) < p


def _fast_truncated_normal(
    fast_normal: Any,
    key: Any,
    lower: Any,
    upper: Any,
    shape: Sequence[int] | None = None,
    dtype: Any = None,
    *,
    out_sharding: Any = None,
) -> jax.Array:
    """Normally distributed values, with those outside (lower, upper) moved to its ends (as alpa does it)."""
    dtype = _float_dtype(dtype)
    shape = np.broadcast_shapes(np.shape(lower), np.shape(upper)) if shape is None else shape
    inf = np.array(np.inf, dtype)
    lowest = lax.nextafter(lax.stop_gradient(jnp.asarray(lower, dtype)), inf)
    highest = lax.nextafter(lax.stop_gradient(jnp.asarray(upper, dtype)), -inf)
    return jnp.clip(fast_normal(key, shape, dtype), lowest, highest)


def _float_dtype(dtype: Any) -> np.dtype:
    return dtypes.canonicalize_dtype(dtypes.float_ if dtype is None else dtype)


def _rng_normal_abstract_eval(
    mu: core.ShapedArray, sigma: core.ShapedArray, *, shape: tuple[int, ...]
) -> core.ShapedArray:
    if mu.dtype != sigma.dtype or mu.shape or sigma.shape:
        raise ValueError(f"rng_normal takes two scalars of one dtype, but got {mu} and {sigma}")
    return core.ShapedArray(shape, mu.dtype, weak_type=mu.weak_type and sigma.weak_type)


def _rng_normal_lowering(
    ctx: mlir.LoweringRuleContext, mu: ir.Value, sigma: ir.Value, *, shape: tuple[int, ...]
) -> list[ir.Value]:
    length_of_dims = mlir.ir_constant(np.array(shape, np.int64))
    return [hlo.rng(mu, sigma, length_of_dims, hlo.RngDistributionAttr.get("NORMAL"))]
