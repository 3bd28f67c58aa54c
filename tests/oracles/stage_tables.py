"""Random tables of what stages cost, and the best pipelines for them by enumeration and by Alpa's programmes.

Takes a seed and sizes; a table answers each question twice: `train`, `train_faster` and `infer` call Alpa's dynamic
programmes, `pipelines` with the two cost functions look at every pipeline there is. Invariant: costs are small whole
numbers, so that every sum is exact in single precision and equal means equal.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from alpa.pipeline_parallel.stage_construction import inference_dp, training_dp, training_dp_2

# Three shapes in each, because numba compiles anew for another number of them.
SUBMESHES = {"one host": ((1, 1), (1, 2), (1, 4)), "two hosts": ((1, 1), (1, 2), (2, 2))}
NUM_DEVICES = 4

# A stage: its layers from the first to the one behind the last, its submesh shape, its configuration.
Pipeline = list[tuple[tuple[int, int], int, int]]
Found = tuple[float, Pipeline | None]
NOTHING: Found = (np.inf, None)


class Table:
    """What stages cost, and how many may follow them, by first layer, last layer, submesh shape and configuration.

    Args:
        seed: Of the random numbers.
        num_layers: How many layers there are to be cut into stages.
        num_configs: How many ways there are to shard a stage on a submesh.
        shapes: A key of `SUBMESHES`.
        impossible: The share of the stages that cannot be, which costs infinitely much.
    """

    def __init__(self, seed: int, num_layers: int, num_configs: int, shapes: str, impossible: float) -> None:
        rng = np.random.default_rng(seed)
        self.submeshes = SUBMESHES[shapes]
        size = (num_layers, num_layers, len(self.submeshes), num_configs)
        first, last, shape, _ = np.indices(size)
        num_devices = np.prod(self.submeshes, axis=1)[shape]
        # Devices help less and less, so that pipelines of all lengths are the best of some table.
        self.costs = ((last - first).clip(0) + 1.0) * (4 - np.log2(num_devices)) * rng.integers(3, 12, size)
        self.costs[rng.random(size) < impossible] = np.inf
        self.following = rng.integers(-1, 2 * num_layers, size)
        self.num_layers, self.num_configs = num_layers, num_configs

    def train(self, num_micro_batches: int) -> Found:
        """By `training_dp`."""
        cost, found = training_dp(
            self.num_layers,
            NUM_DEVICES,
            num_micro_batches,
            self.submeshes,
            self.num_configs,
            self.costs,
            self.following,
        )
        return _found(cost, found)

    def train_faster(self, num_micro_batches: int) -> Found:
        """By `training_dp_2`, which says by an assertion that there is nothing."""
        try:
            return _found(*training_dp_2(NUM_DEVICES, num_micro_batches, self.submeshes, self.costs, self.following))
        except AssertionError as error:
            if "Unable to find any solution" not in str(error):
                raise
            return NOTHING

    def infer(self) -> Found:
        """By `inference_dp`, which turns a solution round even if there is none."""
        try:
            return _found(*inference_dp(self.num_layers, NUM_DEVICES, self.submeshes, self.num_configs, self.costs))
        except TypeError as error:
            if "'NoneType' object is not reversible" not in str(error):
                raise
            return NOTHING

    def pipelines(self) -> Iterator[Pipeline]:
        """Every way to cut the layers into stages and to give all devices to them."""
        sizes = [hosts * devices for hosts, devices in self.submeshes]
        for num_stages in range(1, min(self.num_layers, NUM_DEVICES) + 1):
            shapes_of_stages = [
                shapes
                for shapes in itertools.product(range(len(sizes)), repeat=num_stages)
                if sum(sizes[shape] for shape in shapes) == NUM_DEVICES
            ]
            for ends in itertools.combinations(range(1, self.num_layers), num_stages - 1):
                layers = list(itertools.pairwise((0, *ends, self.num_layers)))
                for shapes in shapes_of_stages:
                    for configs in itertools.product(range(self.num_configs), repeat=num_stages):
                        yield list(zip(layers, shapes, configs, strict=True))

    def training_cost(self, pipeline: Pipeline, num_micro_batches: int) -> float:
        """The latency of a step: one micro-batch through all stages, the others as fast as the slowest stage is."""
        for position, ((first, end), shape, config) in enumerate(pipeline):
            if len(pipeline) - 1 - position > self.following[first, end - 1, shape, config]:
                return np.inf
        costs = self._costs(pipeline)
        # The product would be no number for one micro-batch and a stage that cannot be.
        return sum(costs) + (num_micro_batches - 1) * max(costs) if max(costs) < np.inf else np.inf

    def inference_cost(self, pipeline: Pipeline) -> float:
        """The latency of one batch through stages of which each takes as long as the slowest."""
        return max(self._costs(pipeline)) * len(pipeline)

    def _costs(self, pipeline: Pipeline) -> list[float]:
        return [float(self.costs[first, end - 1, shape, config]) for (first, end), shape, config in pipeline]


def _found(cost: Any, pipeline: Any) -> Found:
    """A programme's result in Python's own numbers."""
    if pipeline is None:
        return float(cost), None
    return float(cost), [((int(first), int(end)), int(shape), int(config)) for (first, end), shape, config in pipeline]
