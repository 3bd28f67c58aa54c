"""Typed random keys (`jax.random.key`) in the arguments and results of parallelized functions.

Alpa was made when keys were arrays of two numbers, and its meshes hold arrays of numbers alone. So a parallelized
function takes and gives the bits of keys, in nodes that say of what kind they are; these are keys outside, and inside
of the user's function. Invariant: a tree without keys is not changed, and is the same object.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, PartitionSpec
from jax.tree_util import GetAttrKey

from alpa_cfp.spmd.tracing.key_kinds import is_key, key_kind


class KeyBits:
    """A node of a pytree: the bits of random keys, with the name of their kind.

    Args:
        bits: An array of uint32 whose last dim is that of one key's bits, or what stands for it: its abstract value,
            its placement.
        kind: As `jax.random.wrap_key_data` calls it.
    """

    def __init__(self, bits: Any, kind: str) -> None:
        self.bits = bits
        self.kind = kind

    def __repr__(self) -> str:
        return f"KeyBits({self.bits!r}, {self.kind!r})"


jax.tree_util.register_pytree_with_keys(
    KeyBits,
    lambda node: (((GetAttrKey("bits"), node.bits),), node.kind),
    lambda kind, children: KeyBits(next(iter(children)), kind),
)


class OfBits:
    """The user's function as one of the bits of keys.

    Args:
        function: Takes and gives pytrees with keys.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return bits_of_keys(self.function(*keys_of_bits(args)))


def bits_of_keys(tree: Any) -> Any:
    """`tree` with each array of keys, or the abstract value of one, as a `KeyBits`."""
    if not any(map(is_key, jax.tree.leaves(tree))):
        return tree
    return jax.tree.map(_bits, tree)


def keys_of_bits(tree: Any) -> Any:
    """The inverse of `bits_of_keys`; bits that lie on a cluster are fetched."""
    if not has_bits(tree):
        return tree
    return jax.tree.map(lambda leaf: _key(leaf) if is_bits(leaf) else leaf, tree, is_leaf=is_bits)


def plain(tree: Any) -> Any:
    """`tree` with what each `KeyBits` holds in its place."""
    return jax.tree.map(lambda leaf: leaf.bits if is_bits(leaf) else leaf, tree, is_leaf=is_bits)


def like(tree: Any, bits: Any) -> Any:
    """`bits`, a tree like `plain(tree)`, with keys where `tree` has a `KeyBits`."""
    return jax.tree.map(
        lambda leaf, value: _key(KeyBits(value, leaf.kind)) if is_bits(leaf) else value, tree, bits, is_leaf=is_bits
    )


def has_bits(tree: Any) -> bool:
    """Whether there is a `KeyBits` in `tree`."""
    return any(map(is_bits, jax.tree.leaves(tree, is_leaf=is_bits)))


def is_bits(value: Any) -> bool:
    """Whether this is a `KeyBits`."""
    return isinstance(value, KeyBits)


def _bits(leaf: Any) -> Any:
    if not is_key(leaf):
        return leaf
    if isinstance(leaf, jax.Array):
        return KeyBits(jax.random.key_data(leaf), key_kind(leaf.dtype))
    return KeyBits(jax.eval_shape(jax.random.key_data, leaf), key_kind(leaf.dtype))


def _key(node: KeyBits) -> jax.Array:
    bits = node.bits
    if isinstance(bits, jax.Array) and not isinstance(bits, Tracer):
        bits = jax.device_put(bits, _with_whole_keys(bits.sharding))
    elif not isinstance(bits, jax.Array):
        bits = jnp.asarray(np.asarray(bits))  # it lies on a cluster
    return jax.random.wrap_key_data(bits, impl=node.kind)


def _with_whole_keys(sharding: jax.sharding.Sharding) -> jax.sharding.Sharding:
    """`sharding` with the last dim, the bits of a key, on each device: jax takes no other one."""
    if not isinstance(sharding, NamedSharding):
        return sharding
    return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[:-1]), memory_kind=sharding.memory_kind)
