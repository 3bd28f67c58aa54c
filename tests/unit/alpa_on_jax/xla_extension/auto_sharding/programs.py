"""Small programs as graphs and ILPs, what their values are on each device, and the cheapest solution found by trying.

Takes JAX functions and arrays, or hand-made nodes. Invariant: costs are added up here from the nodes and their edges as
they were before merging, and solutions are found without a solver, so nothing of `cost_graph` and `solver` is used.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.propagation import donation_pairs
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.spmd.simplify import simplify
from alpa_on_jax.xla_extension.auto_sharding.communication import INFINITY_COST, Communication
from alpa_on_jax.xla_extension.auto_sharding.graph import Graph, Instruction, build_graph
from alpa_on_jax.xla_extension.auto_sharding.ilp import Ilp, build_ilp
from alpa_on_jax.xla_extension.auto_sharding.options import SolverOptions
from alpa_on_jax.xla_extension.auto_sharding.solver import Problem
from alpa_on_jax.xla_extension.auto_sharding.specs import BOTH, BOTH_SWAPPED, FIRST, NONE, SECOND, Mesh, Spec
from alpa_on_jax.xla_extension.auto_sharding.strategies import Node, Strategy
from unit.alpa_cfp.spmd.helpers import lower, marked

MESH_SHAPES = ((4, 1), (2, 2), (1, 2))

_AXES = {NONE: (), FIRST: (0,), SECOND: (1,), BOTH: (0, 1), BOTH_SWAPPED: (0, 1)}


def options(mesh_shape: tuple[int, int], **changes: Any) -> SolverOptions:
    """Alpa's options with alpha and beta 1 along both axes."""
    return SolverOptions(mesh_shape, **{"mesh_alpha": (1.0, 1.0), "mesh_beta": (1.0, 1.0), **changes})


def all_specs(mesh: Mesh, rank: int, codes: Sequence[int] = (NONE, FIRST, SECOND, BOTH)) -> list[Spec]:
    """Every spec of a tensor of `rank` dims with the given codes."""
    possible = [code for code in codes if all(mesh.shape[axis] > 1 for axis in _AXES[code])]
    return [
        spec
        for spec in itertools.product(possible, repeat=rank)
        if max(Counter(axis for code in spec for axis in _AXES[code]).values(), default=0) <= 1
    ]


def tile(mesh: Mesh, spec: Spec, shape: Sequence[int], device: int) -> tuple[slice, ...]:
    """The part of an array of `shape` that `device` holds; parts are as long as the first one, but for the end."""
    logical_mesh = LogicalMesh(mesh.shape)
    sharding = mesh.to_sharding(spec, logical_mesh)
    slices = []
    for dim, size in enumerate(shape):
        length = math.ceil(size / sharding.num_shards(dim))
        start = min(size, length * logical_mesh.linear_coordinate(device, sharding.dims[dim]))
        slices.append(slice(start, min(size, start + length)))
    return tuple(slices)


def parts(mesh: Mesh, spec: Spec, value: np.ndarray) -> list[np.ndarray]:
    """What each device holds of `value`."""
    return [value[tile(mesh, spec, value.shape, device)] for device in range(mesh.num_devices)]


def summed(mesh: Mesh, values: Sequence[np.ndarray], axes: Sequence[int]) -> list[np.ndarray]:
    """The devices' values after an all-reduce along the mesh axes `axes`."""
    ids = np.arange(mesh.num_devices).reshape(mesh.shape)
    result = list(values)
    for axis in axes:
        before = list(result)
        for group in np.moveaxis(ids, axis, -1).reshape(-1, mesh.shape[axis]):
            total = np.sum([before[device] for device in group], axis=0)
            for device in group:
                result[device] = total
    return result


def graph_of(function: Callable[..., Any], *arguments: Any, markers: Sequence[str] = ()) -> Graph:
    """The graph of `function`, simplified, its optimization barriers marked with `markers`."""
    return graph_of_module(marked(lower(function, arguments), markers))


def graph_of_module(module: HloModule) -> Graph:
    """The graph of a module, simplified."""
    with mlir.context(), ir.Location.unknown():
        parsed = mlir.parse(module.bytecode)
        simplify(parsed)
        return build_graph(mlir.main_function(parsed))


def only(graph: Graph, opcode: str) -> Instruction:
    """The one instruction of `opcode`."""
    (found,) = (instruction for instruction in graph.instructions if instruction.opcode == opcode)
    return found


def ilp_of_module(module: HloModule, chosen: SolverOptions) -> Ilp:
    """The ILP of a module."""
    return build_ilp(graph_of_module(module), donation_pairs(module), Communication(chosen), chosen)


def ilp_of(function: Callable[..., Any], *arguments: Any, chosen: SolverOptions, donated: Sequence[bool] = ()) -> Ilp:
    """The ILP of `function`."""
    return ilp_of_module(lower(function, arguments, donated), chosen)


@dataclass(frozen=True)
class Search:
    """An optimisation problem over nodes in which nothing is merged.

    Attributes:
        nodes: The variables, operands before users.
        discounts: Pairs of nodes with what is saved, [strategies], where both have the same strategy.
        aliases: Pairs of nodes that must have the same spec.
        live: For each node the nodes that are live then; empty without a limit.
        memory_budget_bytes: What they may take.
    """

    nodes: Sequence[Node]
    discounts: Sequence[tuple[Node, Node, np.ndarray]] = ()
    aliases: Sequence[tuple[Node, Node]] = ()
    live: Sequence[Sequence[Node]] = ()
    memory_budget_bytes: float | None = None

    def cost(self, choices: Sequence[int]) -> float:
        """The sum of all costs of a choice for each node."""
        return sum(self._cost_of(node, choices) for node in self.nodes)

    def _cost_of(self, node: Node, choices: Sequence[int]) -> float:
        """The costs of `node`, of the edges to its operands, and what it saves with nodes before it."""
        own = choices[node.index]
        cost = float(node.compute_cost[own] + node.communication_cost[own])
        cost += sum(float(matrix[choices[source.index], own]) for source, matrix in node.edges)
        for first, second, saved in self.discounts:
            earlier, later = sorted((first.index, second.index))
            if later == node.index and choices[earlier] == own:
                cost -= float(saved[own])
        return cost

    def is_allowed(self, choices: Sequence[int]) -> bool:
        """Whether aliases have the same spec and memory suffices everywhere."""
        return all(self._allows(node, choices) for node in self.nodes)

    def _allows(self, node: Node, choices: Sequence[int]) -> bool:
        for pair in self.aliases:
            if max(pair, key=lambda end: end.index) is node:
                a, b = (end.specs[choices[end.index]] for end in pair)
                if a != b:
                    return False
        if self.memory_budget_bytes is None or not self.live:
            return True
        used = sum(float(value.memory_bytes[choices[value.index]]) for value in self.live[node.index])
        return used <= self.memory_budget_bytes * (1 + 1e-9)

    def cheapest(self) -> float:
        """The least cost of all allowed choices, found by trying all of them; INFINITY_COST or more if there is none.

        A branch is left when it already costs as much as what is known, even if all that can still be saved is saved.
        """
        savings = np.zeros(len(self.nodes) + 1)
        for first, second, saved in self.discounts:
            savings[: max(first.index, second.index) + 1] += saved.max()  # not yet had before both are placed
        best = INFINITY_COST
        choices = [-1] * len(self.nodes)

        def place(index: int, cost: float) -> None:
            nonlocal best
            if cost - savings[index] >= best:
                return
            if index == len(self.nodes):
                best = cost
                return
            node = self.nodes[index]
            branches = []
            for own in range(len(node.strategies)):
                choices[index] = own
                if self._allows(node, choices):
                    branches.append((self._cost_of(node, choices), own))
            for more, own in sorted(branches):
                choices[index] = own
                place(index + 1, cost + more)
            choices[index] = -1

        place(0, 0.0)
        return best


def search_of(ilp: Ilp, donated: Sequence[tuple[int, int]] = ()) -> Search:
    """The same problem as the ILP of a program, without anything of its cost graph; see `build_ilp` for `donated`."""
    nodes = list(ilp.nodes.values())
    discounts = []
    for instruction in ilp.graph.instructions:
        if instruction.opcode == "add" and all(operand.dot for operand in instruction.operands):
            first, second = (ilp.nodes[operand] for operand in instruction.operands)
            if first is not second and len(first.strategies) == len(second.strategies):
                discounts.append((first, second, first.communication_cost))
    aliases = [
        (ilp.nodes[ilp.graph.parameters[parameter]], ilp.nodes[ilp.graph.results[result]])
        for result, parameter in donated
    ]
    live = [[nodes[i] for i in indices] for indices in ilp.problem.live]
    return Search(nodes, discounts, aliases, live, ilp.problem.memory_budget_bytes)


def problem_cost(problem: Problem, choices: Sequence[int]) -> float:
    """What alpa's solver minimises, of the choices of nodes that are not merged."""
    own = [choices[node if into < 0 else into] for node, into in enumerate(problem.follow)]
    cost = sum(
        float(compute[k] + communication[k])
        for compute, communication, k in zip(problem.compute, problem.communication, own, strict=True)
    )
    return cost + sum(
        float(matrix[own[i], own[j]]) for (i, j), matrix in zip(problem.edges, problem.edge_costs, strict=True)
    )


def strategies_of(ilp: Ilp, instruction: Instruction) -> tuple[Strategy, ...]:
    """The strategies of a value."""
    return ilp.nodes[instruction].strategies


def computed_as_the_strategy_says(
    mesh: Mesh, strategy: Strategy, operands: Sequence[np.ndarray], local: Callable[..., np.ndarray]
) -> list[np.ndarray]:
    """What the devices have after each has applied `local` to its parts of `operands` and partial sums are reduced."""
    required = strategy.operand_specs or (None,) * len(operands)
    placed = [
        parts(mesh, (NONE,) * operand.ndim if spec is None else spec, operand)
        for spec, operand in zip(required, operands, strict=False)
    ]
    return summed(mesh, [local(*held) for held in zip(*placed, strict=True)], strategy.all_reduce_axes)


def assert_right(
    mesh: Mesh, strategy: Strategy, operands: Sequence[np.ndarray], local: Callable[..., np.ndarray]
) -> None:
    """Following `strategy`, each device computes its part of what `local` computes of the whole operands."""
    expected = parts(mesh, strategy.spec, np.asarray(local(*operands)))
    found = computed_as_the_strategy_says(mesh, strategy, operands, local)
    for device, (part, wanted) in enumerate(zip(found, expected, strict=True)):
        message = f"{strategy} on device {device}"
        assert part.shape == wanted.shape, message
        np.testing.assert_allclose(part, wanted, rtol=1e-5, atol=1e-5, err_msg=message)
