"""`jax._src.tree_util._replace_nones`."""

from typing import Any

from jax import tree_util

__all__ = ["_replace_nones"]


def _replace_nones(sentinel: Any, tree: Any) -> Any:
    """`tree` with `sentinel` in the place of every None."""
    return tree_util.tree_map(lambda x: sentinel if x is None else x, tree, is_leaf=lambda x: x is None)
