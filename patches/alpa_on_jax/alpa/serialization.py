"""Replacements in `alpa.serialization`: checkpoints of `jax.Array`s, and restoring on a local mesh.

A checkpoint has alpa's own layout: a folder for each array (`arrays.checkpoint_files`), and one msgpack file with the
tree.
"""

import os
from types import ModuleType
from typing import Any

import jax
import msgpack
import numpy as np
from flax.serialization import from_state_dict, to_state_dict

from alpa_on_jax.alpa.random_keys import bits_of_keys, like, plain
from alpa_on_jax.arrays.checkpoint_files import load_array, load_sharded_array, save_array
from alpa_on_jax.in_process.place import is_here
from alpa_on_jax.replacing import replace


def apply(module: ModuleType) -> None:
    """Replace saving of arrays that are no `DistributedArray`, and restoring without a cluster."""
    restore_on_cluster = module.restore_checkpoint
    remote_types = (module.DistributedArray, module.ReplicatedDistributedArray)

    def save_checkpoint(
        ckpt_dir: str | os.PathLike, target: Any, step: int, local_cache_dir: str | os.PathLike | None = None
    ) -> None:
        """Save a pytree of arrays; see alpa's documentation. `local_cache_dir` is for arrays on a cluster."""
        os.makedirs(ckpt_dir, exist_ok=True)
        if local_cache_dir is not None:
            os.makedirs(local_cache_dir, exist_ok=True)
        state = to_state_dict(target)
        names = module._dfs_pytree(state, "state")
        leaves, tree = jax.tree.flatten(state)
        saved = []
        meshes = {}
        for name, leaf in zip(names, leaves, strict=True):
            path = os.path.join(ckpt_dir, name)
            leaf = plain(bits_of_keys(leaf))
            if isinstance(leaf, remote_types):
                cache = None if local_cache_dir is None else os.path.join(local_cache_dir, name)
                array = getattr(leaf, "replica", leaf)
                array.save(path, cache)
                meshes[id(array.device_mesh)] = array.device_mesh
            elif isinstance(leaf, (np.ndarray, jax.Array)):
                save_array(path, leaf)
            else:
                saved.append(leaf)
                continue
            saved.append(name)
        for mesh in meshes.values():
            mesh.sync_workers()  # so that what a host could not write is an error here
        with open(os.path.join(ckpt_dir, f"checkpoint_{step}"), "wb") as file:
            msgpack.pack(jax.tree.unflatten(tree, saved), file)

    def restore_checkpoint(ckpt_dir: str | os.PathLike, step: int, placement_specs: Any) -> Any:
        """Load what `save_checkpoint` wrote, and put it where `placement_specs` says.

        Random keys are saved as their bits, and are keys again where the placements are those of keys.
        """
        return like(placement_specs, restore_arrays(ckpt_dir, step, plain(placement_specs)))

    def restore_arrays(ckpt_dir: str | os.PathLike, step: int, placement_specs: Any) -> Any:
        physical_mesh, virtual = module.get_global_physical_mesh(), module.get_global_virtual_physical_mesh()
        if virtual is not None and (virtual.launched_physical_mesh_group is not None or not is_here(virtual)):
            return restore_on_cluster(ckpt_dir, step, placement_specs)
        if physical_mesh is None:
            physical_mesh = module.get_global_physical_mesh(create_if_not_exist=True)
        with open(os.path.join(ckpt_dir, f"checkpoint_{step}"), "rb") as file:
            names = from_state_dict(placement_specs, msgpack.unpackb(file.read()))
        paths, tree = jax.tree.flatten(names)
        specs = jax.tree.leaves(placement_specs)
        arrays = [
            # A number is in the tree itself.
            load_array(os.path.join(ckpt_dir, path)) if isinstance(path, str) else np.asarray(path, spec.aval.dtype)
            for path, spec in zip(paths, specs, strict=True)
        ]
        return jax.tree.unflatten(tree, physical_mesh.shard_args_to_arrays_ps(specs, arrays))

    replace(module, load_sharded_array, save_checkpoint, restore_checkpoint)
