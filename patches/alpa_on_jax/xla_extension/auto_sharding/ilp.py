"""Alpa's intra-operator pass: build the ILP over the strategies of all values, solve it, write the solution down.

Takes an unoptimised module and the options; annotates the module in place, in the simplified form that the ILP was
built for. The steps are those of `AutoSharding::Run` in tensorflow-alpa's auto_sharding.cc, each in a module of its
own: simplify, graph, batch_dims, depths, strategies, cost_graph, solver, placement, annotate.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.propagation import donation_pairs, given_inputs
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh
from alpa_cfp.spmd.simplify import simplify
from alpa_on_jax import errors

# Imported for the strategies that they register.
from alpa_on_jax.xla_extension.auto_sharding import contractions, enumerate_specs, follow  # noqa: F401
from alpa_on_jax.xla_extension.auto_sharding.annotate import Shardings, annotate
from alpa_on_jax.xla_extension.auto_sharding.batch_dims import BatchDims, find_batch_dims
from alpa_on_jax.xla_extension.auto_sharding.communication import Communication
from alpa_on_jax.xla_extension.auto_sharding.cost_graph import CostGraph, build_cost_graph
from alpa_on_jax.xla_extension.auto_sharding.depths import find_depths
from alpa_on_jax.xla_extension.auto_sharding.graph import Graph, Instruction, build_graph
from alpa_on_jax.xla_extension.auto_sharding.liveness import live_values
from alpa_on_jax.xla_extension.auto_sharding.options import SolverOptions
from alpa_on_jax.xla_extension.auto_sharding.placement import Placement
from alpa_on_jax.xla_extension.auto_sharding.reduce_scatter import generate_reduce_scatters
from alpa_on_jax.xla_extension.auto_sharding.solver import Problem, make_problem, solve
from alpa_on_jax.xla_extension.auto_sharding.specs import Mesh, Spec
from alpa_on_jax.xla_extension.auto_sharding.strategies import Node, StrategyBuilder
from alpa_on_jax.xla_extension.pass_context import limits_of_pass_context

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Ilp:
    """A program's ILP.

    Attributes:
        graph: The program.
        nodes: The variable of each value.
        costs: Their costs after merging.
        problem: The same in the solver's form.
        aliases: For each result that takes a donated parameter's buffer, that parameter.
        depths: See `depths`.
        without_strategies: The ops that each device computes as a whole, because there are no strategies for them.
    """

    graph: Graph
    nodes: dict[Instruction, Node]
    costs: CostGraph
    problem: Problem
    aliases: dict[Instruction, Instruction]
    depths: dict[Instruction, int]
    without_strategies: tuple[Instruction, ...]


def shard_with_ilp(module: HloModule, options: SolverOptions) -> None:
    """Annotate `module` in place with the solution of its ILP.

    Raises:
        AutoShardingInfeasibleError: no solution fits the options.
        BatchDimError: the batch dim cannot be split as the options force it to be.
    """
    logical_mesh = LogicalMesh(options.mesh_shape)

    def change(parsed: Any) -> tuple[Shardings, Shardings]:
        simplify(parsed)
        communication = Communication(options)
        graph = build_graph(mlir.main_function(parsed))
        given = _given_specs(graph, given_inputs(module, logical_mesh), communication.mesh)
        ilp = build_ilp(graph, donation_pairs(module), communication, options, given)
        _warn_of_ops_without_strategies(ilp.without_strategies)
        solution = solve(ilp.problem, ilp.nodes, ilp.costs)
        placement = Placement(solution, communication.mesh)
        if options.prefer_reduce_scatter:
            generate_reduce_scatters(ilp.graph, placement, ilp.aliases, ilp.depths, communication.mesh, options)
        return annotate(parsed, ilp.graph, placement, communication.mesh, logical_mesh)

    module.bytecode, (module.input_shardings, module.output_shardings) = mlir.edit(module.bytecode, change)
    module.mesh = logical_mesh
    module.solved, module.propagated = True, False
    module.combiner_limits = limits_of_pass_context()


def build_ilp(
    graph: Graph,
    donated: list[tuple[int, int]],
    communication: Communication,
    options: SolverOptions,
    given: Mapping[Instruction, Spec] | None = None,
) -> Ilp:
    """The ILP of a program.

    Args:
        graph: The program, simplified.
        donated: Pairs (result, parameter) that share a buffer.
        communication: What communication costs on the mesh.
        options: See `SolverOptions`.
        given: The specs of parameters that are not to be chosen.
    """
    started = time.perf_counter()
    batch = find_batch_dims(graph)
    options = _fitting_the_batch(batch, options)
    aliases = {graph.results[result]: graph.parameters[parameter] for result, parameter in donated}
    depths = find_depths(graph, batch)
    builder = StrategyBuilder(graph, batch, depths, aliases, communication, options, given or {})
    nodes = builder.build()
    costs = build_cost_graph(nodes, _sums_of_dots(graph, builder.nodes))
    of = builder.nodes
    if options.memory_budget_bytes is None:
        live: list[list[Node]] = [[] for _ in nodes]
    else:
        live = [[of[value] for value in values] for values in live_values(graph)]
    buffers = [(graph.parameters[parameter], graph.results[result]) for result, parameter in donated]
    kept = [(old, new) for old, new in _accumulators(graph) if set(of[old].specs) & set(of[new].specs)]
    problem = make_problem(
        nodes,
        costs,
        [(of[before], of[after]) for before, after in (*buffers, *kept)],
        live,
        options.memory_budget_bytes,
    )
    logger.info("auto-sharding: built the ILP of %d values in %.2f s", len(nodes), time.perf_counter() - started)
    return Ilp(graph, of, costs, problem, aliases, depths, tuple(builder.without_strategies))


def _accumulators(graph: Graph) -> list[tuple[Instruction, Instruction]]:
    """Values carried from one micro-batch to the next: parameters that begin a stage, and their values when it ends.

    They are told by their use: an accumulator is added to, or its rows but the first are joined with a new one.
    """
    handed = {each.operands[0] for each in graph.instructions if each.stage.endswith("$end")}
    found = []
    for instruction in graph.instructions:
        if instruction not in handed or instruction.opcode not in ("add", "concatenate"):
            continue
        for operand in instruction.operands:
            old = operand.operands[0] if operand.opcode == "slice" else operand
            if old.stage.endswith("$start") and old.shape == instruction.shape and old.operands[0] in graph.parameters:
                found.append((old.operands[0], instruction))
                break
    return found


def _given_specs(graph: Graph, given: Sequence[ArraySharding | None], mesh: Mesh) -> dict[Instruction, Spec]:
    """The specs that alpa has set on parameters, as it does for `stage_input_shardings`.

    Raises:
        ShardingOptionError: one of them splits along a part of an axis.
    """
    specs = {}
    for parameter, sharding in zip(graph.parameters, given, strict=True):
        if sharding is not None:
            spec = mesh.of_sharding(sharding)
            if spec is None:
                raise errors.ShardingOptionError.part_of_axis(parameter, sharding)
            specs[parameter] = spec
    return specs


def _warn_of_ops_without_strategies(instructions: Sequence[Instruction]) -> None:
    """Name each kind of op once; a custom call by what it calls."""
    names = {
        f"{op.opcode} {mlir.call_target(mlir.defining_op(op.value))}" if op.opcode == "custom_call" else op.opcode
        for op in instructions
    }
    if names:
        logger.warning(
            "auto-sharding has no strategies for %s: each device computes the whole of them, with their operands and "
            "results replicated on all devices",
            ", ".join(sorted(names)),
        )


def _fitting_the_batch(batch: BatchDims, options: SolverOptions) -> SolverOptions:
    """The options without those that the batch size makes impossible.

    Where the batch is not divided by the devices no dim is split over all of them, and a batch of one is not split: its
    dim may have been dropped, so what was found may be another one.
    """
    if options.force_batch_dim_to_mesh_axis is None or not batch:
        return options
    size = min(instruction.shape[dim] for instruction, dim in batch.items())
    devices = options.mesh_shape[0] * options.mesh_shape[1]
    if size % devices and options.allow_mixed_mesh_shape:
        logger.warning("auto-sharding: a batch of %d is not divided by %d devices: no mixed mesh shapes", size, devices)
        options = replace(options, allow_mixed_mesh_shape=False)
    return replace(options, force_batch_dim_to_mesh_axis=None) if size == 1 else options


def _sums_of_dots(graph: Graph, nodes: dict[Instruction, Node]) -> list[tuple[Node, Node]]:
    """The pairs of dots whose results are added."""
    return [
        (nodes[first], nodes[second])
        for instruction in graph.instructions
        if instruction.opcode == "add"
        for first, second in [instruction.operands]
        if first is not second and first.dot is not None and second.dot is not None
    ]
