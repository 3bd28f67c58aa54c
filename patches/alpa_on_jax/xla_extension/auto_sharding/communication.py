"""Costs of communication: collectives along the axes of a logical mesh, and resharding a value from spec to spec.

The model is Alpa's (`ClusterEnvironment` and `ProfilingResult` in tensorflow-alpa's auto_sharding_strategy.h): alpha +
beta times bytes, or, where the mesh was profiled, linear interpolation between the measured sizes. Costs have no unit
but that of alpha and beta. A resharding that the partitioner of its time could not do costs INFINITY_COST, as does
what an option forbids.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from alpa_on_jax.xla_extension.auto_sharding.options import SolverOptions
from alpa_on_jax.xla_extension.auto_sharding.specs import BOTH, NONE, Mesh, Spec, is_replicated

INFINITY_COST = 1e13

# By these fractions Alpa prefers, among equals, reduce-scatter and all-to-all to all-reduce to all-gather.
_ALL_GATHER_EXTRA, _ALL_REDUCE_EXTRA, _ALL_TO_ALL_EXTRA, _REDUCE_SCATTER_EXTRA = 0.1, 0.01, 0.001, 0.001

Groups = tuple[tuple[int, ...], ...]


class Communication:
    """The costs of communication on one logical mesh under one set of options."""

    def __init__(self, options: SolverOptions):
        self.mesh = Mesh(options.mesh_shape)
        self._options = options
        self._alpha, self._beta = options.mesh_alpha, options.mesh_beta
        self._profile = _Profile.of(options.profile, options.mesh_shape)
        self._resharding: dict[tuple[float, Spec, Spec], float] = {}
        self._matrices: dict[tuple[float, int, int], np.ndarray] = {}
        self._interned: dict[tuple[Spec, ...], tuple[Spec, ...]] = {}

    def all_reduce(self, size_bytes: float, axis: int) -> float:
        """Summing a value of `size_bytes` on each device over the devices along `axis`."""
        if self._profile is not None:
            return self._profile.cost("all_reduce", size_bytes / 4, axis)
        return self._linear(2 * self._fraction(axis) * size_bytes, axis) + _ALL_REDUCE_EXTRA

    def all_gather(self, size_bytes: float, axis: int) -> float:
        """Gathering a value that has `size_bytes` afterwards."""
        if self._options.all_gather_cost is not None:
            return self._options.all_gather_cost
        if self._profile is not None:
            return self._profile.cost("all_gather", size_bytes / 4, axis)
        if self._options.force_batch_dim_to_mesh_axis == axis:
            return INFINITY_COST
        return self._linear(self._fraction(axis) * size_bytes, axis) + _ALL_GATHER_EXTRA

    def reduce_scatter(self, size_bytes: float, axis: int) -> float:
        """Summing a value of `size_bytes` on each device, of which each then keeps its part."""
        if self._profile is not None:
            return self._profile.cost("reduce_scatter", size_bytes / 4, axis)
        return self._linear(self._fraction(axis) * size_bytes, axis) + _REDUCE_SCATTER_EXTRA

    def all_to_all(self, size_bytes: float, axis: int) -> float:
        """Moving the split of a value of `size_bytes` in all from one dim to another."""
        if self._options.all_to_all_cost is not None:
            return self._options.all_to_all_cost
        if self._profile is not None:
            return self._profile.all_to_all(size_bytes / 4, axis)
        if self._options.force_batch_dim_to_mesh_axis == axis:
            return INFINITY_COST
        devices = self.mesh.shape[axis]
        penalty = devices / 2  # Alpa's, found on V100s
        return self._linear(self._fraction(axis) / devices * size_bytes * penalty, axis) + _ALL_TO_ALL_EXTRA

    def recompute(self, operand_bytes: float) -> float:
        """Computing a dot of operands of `operand_bytes` more than once; infinite unless the option allows it."""
        if not self._options.allow_recompute_heavy_op:
            return INFINITY_COST
        return self.all_reduce(operand_bytes, 0) + self.all_reduce(operand_bytes, 1)

    @property
    def replicated_penalty(self) -> float:
        """Cost of a value that could be split and is not, so that equal costs lead to split values."""
        return _round(self.all_reduce(1, 0) + self.all_reduce(1, 1))

    def intern(self, specs: Sequence[Spec]) -> tuple[Spec, ...]:
        """The one tuple that stands for `specs`: `resharding_matrix` recognizes it by identity."""
        key = tuple(specs)
        return self._interned.setdefault(key, key)

    def resharding_matrix(self, size_bytes: float, sources: tuple[Spec, ...], targets: tuple[Spec, ...]) -> np.ndarray:
        """`resharding` from each of `sources` to each of `targets` (both interned): [sources, targets]; read-only."""
        key = (size_bytes, id(sources), id(targets))
        matrix = self._matrices.get(key)
        if matrix is None:
            matrix = np.array([[self.resharding(size_bytes, a, b) for b in targets] for a in sources])
            matrix.setflags(write=False)
            self._matrices[key] = matrix
        return matrix

    def resharding(self, size_bytes: float, source: Spec, target: Spec) -> float:
        """Bringing a value of `size_bytes` in all from one spec to another."""
        if source == target:
            return 0.0
        key = (size_bytes, source, target)
        cost = self._resharding.get(key)
        if cost is None:
            cost = self._resharding[key] = self._resharding_cost(size_bytes, source, target)
        return cost

    def _resharding_cost(self, size_bytes: float, source: Spec, target: Spec) -> float:
        mesh = self.mesh
        whole = is_replicated(source) or is_replicated(target)
        if not whole and mesh.is_mixed(source) != mesh.is_mixed(target):
            return self._mixed_resharding(size_bytes, source, target)
        # A dim that is split along both axes of a 2D mesh is gathered at the price of axis 0, as in Alpa.
        before, after = mesh.axis_of_dims(source), mesh.axis_of_dims(target)
        sliced, gathered = 0, []
        for old, new in zip(before, after, strict=True):
            if old == new:
                continue
            if old < 0:
                sliced += 1
            elif new < 0:
                gathered.append(old)
            else:
                return INFINITY_COST
        if not gathered:
            return 0.0
        if sliced > 1 and len(gathered) > 1:
            return INFINITY_COST
        if sliced == 1 and len(gathered) == 1:
            return INFINITY_COST if mesh.is_2d else self.all_to_all(size_bytes, gathered[0])
        part, cost = size_bytes / mesh.num_tiles(source), 0.0
        for axis in gathered:
            part *= mesh.shape[axis]
            cost += self.all_gather(part, axis)
        return cost

    def _mixed_resharding(self, size_bytes: float, source: Spec, target: Spec) -> float:
        """Between a spec that splits a dim along both axes and one that does not."""
        mesh = self.mesh
        to_mixed = mesh.is_mixed(target)
        plain, mixed = (source, target) if to_mixed else (target, source)
        part = size_bytes / mesh.num_devices
        steps: list[tuple[str, int]] = []
        for code, mixed_code in zip(plain, mixed, strict=True):
            axis, mixed_axis = mesh.axis_of_dims((code, mixed_code))
            if axis == 1 and mixed_code == NONE:
                steps.append(("all-to-all", 1))
            elif code == NONE:
                if mixed_code == BOTH:
                    steps.append(("slice", 0))
            elif axis != mixed_axis:
                return INFINITY_COST
        steps = steps or [("slice", 1)]
        cost, communications = 0.0, 0
        for kind, axis in steps:
            if kind == "all-to-all":
                cost += self.all_to_all(part, axis)
                communications += 1
            elif not to_mixed:  # a slice, backwards
                cost += self.all_gather(part, axis)
                communications += 1
        return INFINITY_COST if communications > 1 else cost

    def _fraction(self, axis: int) -> float:
        devices = self.mesh.shape[axis]
        return (devices - 1) / devices

    def _linear(self, size_bytes: float, axis: int) -> float:
        return _round(self._alpha[axis] + self._beta[axis] * size_bytes)


class _Profile:
    """Measured collectives of alpa's `ProfilingResult` (alpa/mesh_profiling.py), for the groups of one logical mesh.

    Its tables map (replica groups, dtype) to [(number of elements, seconds)].
    """

    def __init__(self, tables: Mapping[str, Mapping[Any, Any]], groups: tuple[Groups, Groups]):
        self._tables = tables
        self._groups = groups

    @classmethod
    def of(cls, result: Any, mesh_shape: tuple[int, int]) -> "_Profile | None":
        """The profile that `result` holds; None where nothing was measured."""
        if result is None or not result.all_reduce_cost_dict:
            return None
        ids = np.arange(math.prod(mesh_shape)).reshape(mesh_shape)
        groups = (_as_tuples(ids.T), _as_tuples(ids))
        names = ("all_reduce", "all_gather", "reduce_scatter")
        return cls({name: getattr(result, f"{name}_cost_dict") for name in names}, groups)

    def cost(self, kind: str, elements: float, axis: int) -> float:
        """Seconds of a collective, beyond those of an empty one; of one that was not measured, half an all-reduce."""
        if not self._tables[kind]:
            return self.cost("all_reduce", elements, axis) / 2
        return self._interpolate(kind, elements, axis) - self._interpolate(kind, 0, axis)

    def all_to_all(self, elements: float, axis: int) -> float:
        devices = len(self._groups[axis][0])
        return self.cost("all_gather", elements / devices, axis) * devices / 2

    def _interpolate(self, kind: str, elements: float, axis: int) -> float:
        points = self._tables[kind][self._groups[axis], "float32"]
        elements = int(elements)
        ends = [size for size, _ in points[1:]]
        i = min(bisect_left(ends, elements), len(ends) - 1)
        (left, left_cost), (right, right_cost) = points[i], points[i + 1]
        return (elements - left) / (right - left) * (right_cost - left_cost) + left_cost


def _as_tuples(ids: np.ndarray) -> Groups:
    return tuple(tuple(int(device) for device in row) for row in ids)


def _round(value: float) -> float:
    """Round half away from zero, as C++ does."""
    return math.floor(value + 0.5)
