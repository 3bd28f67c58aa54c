"""Replacements in `alpa.shard_parallel.manual_sharding`: manual shardings are checked against the mesh and the pytrees.

Takes the user's `ManualShardingOption`; raises `errors.ShardingOptionError` where alpa has a bare assertion, or where
JAX's message does not say which option is meant. What the shardings mean is worked out by alpa's own functions.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from alpa_on_jax import errors
from alpa_on_jax.replacing import replace


def apply(module: ModuleType) -> None:
    """Check the names of the mesh axes, and that the specs fit the arguments and results."""
    get_original = module.get_manual_sharding_spec
    flatten_original = module._prepare_axis_and_flatten

    def get_manual_sharding_spec(
        sharding_option: Any, mesh_shape: Sequence[int], in_tree: Any, out_tree: Any, in_avals: Any, out_avals: Any
    ) -> Any:
        """As alpa's own.

        Raises:
            errors.ShardingOptionError: the option does not fit the mesh or the arrays.
        """
        if sharding_option is not None:
            _check_axis_names(sharding_option.mesh_axis_names, mesh_shape)
        return get_original(sharding_option, mesh_shape, in_tree, out_tree, in_avals, out_avals)

    def _prepare_axis_and_flatten(axis_resources: Any, tree: Any, name: str) -> Any:
        """As alpa's own: one parsed spec for each leaf of `tree`."""
        try:
            return flatten_original(axis_resources, tree, name)
        except errors.AlpaOnJaxError:
            raise
        except ValueError as error:
            what = "arguments" if name == "in_axis_resources" else "results"
            raise errors.ShardingOptionError(
                f"{name} must have the structure of the function's {what}, {tree}, or be a prefix of it (one "
                f"PartitionSpec for everything below), but it has not: {error}"
            ) from error

    replace(module, get_manual_sharding_spec, _prepare_axis_and_flatten)


def _check_axis_names(names: Any, mesh_shape: Sequence[int]) -> None:
    shape = tuple(int(size) for size in mesh_shape)
    if not isinstance(names, (tuple, list)) or len(names) != len(shape):
        raise errors.ShardingOptionError(
            f"mesh_axis_names={names!r} must name each axis of the logical mesh, which has shape {shape}: for example "
            'ManualShardingOption(("data", "model"), ...)'
        )
    if len(set(names)) < len(names):
        raise errors.ShardingOptionError(f"mesh_axis_names={names!r} has the same name for two axes of the mesh")
