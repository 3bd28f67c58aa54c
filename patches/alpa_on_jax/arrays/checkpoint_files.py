"""The folder of an array in a checkpoint, in alpa's layout: its shards as `.npy` data, and pickled metadata of them.

Invariant: metadata are read as data alone (`data_pickles`). An array on a mesh is written shard by shard, every part
once.
"""

import os
import pickle
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from alpa_on_jax import data_pickles


def load_sharded_array(ckpt_dir: str, metadatas: Sequence[str]) -> np.ndarray:
    """The whole array that the parts named in `metadatas` (files in `ckpt_dir`) make up."""
    parts = [_load_metadata(os.path.join(ckpt_dir, name)) for name in metadatas]
    if not parts:
        raise FileNotFoundError(f"{ckpt_dir} holds no array: there is no metadata file in it")
    dtype = np.dtype(parts[0]["dtype"])
    if parts[0]["shard_indices"] is None:
        return _load_part(ckpt_dir, parts[0]["shard_names"][0], dtype)
    whole = np.empty(parts[0]["global_shape"], dtype)
    for metadata in parts:
        for name, index in zip(metadata["shard_names"], metadata["shard_indices"], strict=True):
            whole[index] = _load_part(ckpt_dir, name, dtype)
    return whole


def load_array(folder: str) -> np.ndarray:
    """The whole array that was saved in a folder."""
    return load_sharded_array(folder, sorted(name for name in os.listdir(folder) if name.startswith("metadata")))


def save_array(folder: str, array: np.ndarray | jax.Array) -> None:
    """Write this process' parts of an array into a folder, each once."""
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


def _load_metadata(path: str) -> dict[str, Any]:
    with open(path, "rb") as file:
        return data_pickles.load(file)


def _load_part(folder: str, name: str, dtype: np.dtype) -> np.ndarray:
    part = np.load(os.path.join(folder, name))
    # numpy's file format keeps only the size of a dtype that is not its own, such as bfloat16.
    return part.view(dtype) if part.dtype != dtype else part
