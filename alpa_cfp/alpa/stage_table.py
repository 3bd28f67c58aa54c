"""Alpa's table of costs of candidate stages, and the stages that its dynamic programme chooses by it.

`watched` notes both while Alpa chooses the stages of a pipeline. Invariant: afterwards alpa's functions that were
watched are its own again.

Tested with alpa 0.2.3, of which it touches `get_compute_cost`, `training_dp` and `inference_dp` in
`stage_construction`.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from alpa.pipeline_parallel import stage_construction


@dataclass(frozen=True, slots=True)
class StageCost:
    """A candidate stage on a part of a target.

    Attributes:
        layers: The first and the last of its layers.
        submesh: The hosts and the devices of each that it has.
        mesh_shape: The shape of their logical mesh.
        cost_s: Seconds of a micro-batch, forward and backward, by the composed costs.
    """

    layers: tuple[int, int]
    submesh: tuple[int, int]
    mesh_shape: tuple[int, int]
    cost_s: float


@dataclass
class StageTable:
    """What Alpa did to choose stages.

    Attributes:
        submeshes: The shapes of submeshes.
        mesh_shapes: The shapes of logical meshes of each of them.
        cost_s: The cost in seconds by first layer, last layer, submesh and logical mesh; inf where there is none.
        successors: By the same, after how many more stages it may be with the activations that it then keeps; -1 for
            none, where it does not fit at all.
        chosen: The indices of the chosen stages.
    """

    submeshes: list[tuple[int, int]] = field(default_factory=list)
    mesh_shapes: list[list[tuple[int, int]]] = field(default_factory=list)
    cost_s: np.ndarray = field(default_factory=lambda: np.zeros((0, 0, 0, 0)))
    successors: np.ndarray = field(default_factory=lambda: np.zeros((0, 0, 0, 0)))
    chosen: tuple[tuple[int, int, int, int], ...] = ()

    def cost(self, first: int, last: int, submesh: int, way: int) -> StageCost:
        """An entry of the table."""
        seconds = float(self.cost_s[first, last, submesh, way])
        return StageCost((first, last), self.submeshes[submesh], self.mesh_shapes[submesh][way], seconds)

    def candidates(self) -> tuple[StageCost, ...]:
        """The possible ones, each on its best logical mesh."""
        places = np.ndindex(self.cost_s.shape[:3])
        best = ((a, b, mesh, int(np.argmin(self.cost_s[a, b, mesh]))) for a, b, mesh in places)
        found = (self.cost(*place) for place in best)
        return tuple(cost for cost in found if np.isfinite(cost.cost_s))

    def stages(self) -> tuple[StageCost, ...]:
        """The chosen ones, in the order of layers."""
        return tuple(self.cost(*place) for place in self.chosen)


@contextlib.contextmanager
def watched(when_chosen: Callable[[], None] = lambda: None) -> Iterator[StageTable]:
    """Gives the table of the stages that alpa chooses in this context.

    Args:
        when_chosen: Called once they are chosen; what it raises ends alpa's compiling.
    """
    table, module = StageTable(), cast(Any, stage_construction)
    before = {name: getattr(module, name) for name in ("get_compute_cost", "training_dp", "inference_dp")}

    def get_compute_cost(virtual_mesh: Any, submeshes: Any, configs: Any, *others: Any) -> Any:
        result = before["get_compute_cost"](virtual_mesh, submeshes, configs, *others)
        table.submeshes = [(int(hosts), int(devices)) for hosts, devices in submeshes]
        # Alpa fills up the configs of submeshes that have fewer.
        table.mesh_shapes = [[_shape(each) for each in of_submesh] for of_submesh in configs]
        table.cost_s, table.successors = np.array(result[0]), np.array(result[1])
        return result

    def chooses(name: str) -> Callable[..., Any]:
        def choose(*args: Any) -> Any:
            result = before[name](*args)
            if result[1] is None:  # alpa says so
                return result
            # Alpa's ranges end behind the last layer.
            table.chosen = tuple((int(a), int(b) - 1, int(mesh), int(way)) for (a, b), mesh, way in result[1])
            when_chosen()
            return result

        return choose

    try:
        module.get_compute_cost = get_compute_cost
        module.training_dp, module.inference_dp = chooses("training_dp"), chooses("inference_dp")
        yield table
    finally:
        for name, function in before.items():
            setattr(module, name, function)


def _shape(config: Any) -> tuple[int, int]:
    if config is None:
        return 0, 0
    rows, columns = config[0].shape
    return int(rows), int(columns)
