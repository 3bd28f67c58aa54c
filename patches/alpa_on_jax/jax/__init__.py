"""Names that were attributes of `jax` itself; the files beside this one complete the modules of the same path."""

from jax import core, tree_util
from jax.interpreters import xla

__all__ = ["ShapedArray", "tree_flatten", "tree_leaves", "tree_map", "tree_unflatten", "xla"]

ShapedArray = core.ShapedArray
tree_flatten = tree_util.tree_flatten
tree_leaves = tree_util.tree_leaves
tree_map = tree_util.tree_map
tree_unflatten = tree_util.tree_unflatten
