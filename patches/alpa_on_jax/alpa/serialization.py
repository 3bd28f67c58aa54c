"""Replacements in `alpa.serialization`: checkpoints of `jax.Array`s, and restoring on a local mesh.

A checkpoint has alpa's own layout: a folder for each array with its shards as `.npy` data and a pickled metadata file,
and one msgpack file with the tree. An array on a mesh is written shard by shard, every part once.
"""

import os
import pickle
from types import ModuleType
from typing import Any

import jax
import msgpack
import numpy as np
from flax.serialization import from_state_dict, to_state_dict

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
        for name, leaf in zip(names, leaves, strict=True):
            path = os.path.join(ckpt_dir, name)
            if isinstance(leaf, remote_types):
                cache = None if local_cache_dir is None else os.path.join(local_cache_dir, name)
                getattr(leaf, "replica", leaf).save(path, cache)
            elif isinstance(leaf, (np.ndarray, jax.Array)):
                _save_array(path, leaf)
            else:
                saved.append(leaf)
                continue
            saved.append(name)
        with open(os.path.join(ckpt_dir, f"checkpoint_{step}"), "wb") as file:
            msgpack.pack(jax.tree.unflatten(tree, saved), file)

    def restore_checkpoint(ckpt_dir: str | os.PathLike, step: int, placement_specs: Any) -> Any:
        """Load what `save_checkpoint` wrote, and put it where `placement_specs` says."""
        physical_mesh = module.get_global_physical_mesh()
        if module.get_global_virtual_physical_mesh() is not None:
            return restore_on_cluster(ckpt_dir, step, placement_specs)
        if physical_mesh is None:
            physical_mesh = module.get_global_physical_mesh(create_if_not_exist=True)
        with open(os.path.join(ckpt_dir, f"checkpoint_{step}"), "rb") as file:
            names = from_state_dict(placement_specs, msgpack.unpackb(file.read()))
        paths, tree = jax.tree.flatten(names)
        specs = jax.tree.leaves(placement_specs)
        arrays = [_load_array(module, os.path.join(ckpt_dir, path)) for path in paths]
        return jax.tree.unflatten(tree, physical_mesh.shard_args_to_arrays_ps(specs, arrays))

    replace(module, save_checkpoint, restore_checkpoint)


def _load_array(module: ModuleType, folder: str) -> np.ndarray:
    metadata = sorted(name for name in os.listdir(folder) if name.startswith("metadata"))
    array = module.load_sharded_array(folder, metadata)
    with open(os.path.join(folder, metadata[0]), "rb") as file:
        dtype = np.dtype(pickle.load(file)["dtype"])
    # numpy's file format keeps only the size of a dtype that is not its own, such as bfloat16.
    return array.view(dtype) if array.dtype != dtype else array


def _save_array(folder: str, array: np.ndarray | jax.Array) -> None:
    os.makedirs(folder, exist_ok=True)
    if isinstance(array, jax.Array):
        shards = [(s.index, np.asarray(s.data)) for s in array.addressable_shards if s.replica_id == 0]
    else:
        shards = [((slice(None),) * array.ndim, array)]
    names = []
    for number, (_, data) in enumerate(shards):
        names.append(f"shard_0.{number}")
        with open(os.path.join(folder, names[-1]), "wb") as file:
            np.save(file, data)
    metadata = {
        "global_shape": array.shape,
        "dtype": np.dtype(array.dtype),
        "shard_names": names,
        "shard_indices": [index for index, _ in shards] if len(shards) > 1 else None,
    }
    with open(os.path.join(folder, "metadata_0"), "wb") as file:
        pickle.dump(metadata, file)
