"""Loading data on two hosts: what a loader reads is its own, and the next batch does not change the one before."""

from collections.abc import Iterator
from typing import Any

import alpa
import numpy as np


def test_a_host_may_read_each_batch_into_the_same_memory(mesh: Any) -> None:
    x = np.ones((32, 16), np.float32)
    method = alpa.ShardParallel(auto_sharding_option=alpa.AutoShardingOption(force_data_parallel=True))
    step = alpa.parallelize(lambda x: x * 2, batch_argnums=(0,), donate_argnums=(), method=method)
    step(x)
    specs = step.get_last_executable().get_input_placement_specs()

    def batches(start: int, end: int, batch_size: int) -> Iterator[tuple[np.ndarray]]:
        # So aligned that JAX takes the memory itself.
        memory = np.zeros(batch_size * 16 + 16, np.float32)
        first = -memory.ctypes.data % 64 // 4
        batch = memory[first : first + batch_size * 16].reshape(batch_size, 16)
        for number in range((end - start) // batch_size):
            batch[...] = number
            yield (batch,)

    loader = alpa.MeshDriverDataLoader(32, 96, batches, specs, prefetch_size=2)
    assert [float(np.asarray(batch).max()) for (batch,) in loader] == [0, 1, 2]
