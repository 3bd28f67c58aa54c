"""The strategies of each value: the specs it may have, what each costs, and what its operands must look like then.

Takes a graph, gives a `Node` for each instruction: a variable of the ILP. Which strategies an opcode has is decided by
a handler that is registered with `strategies_of`; the handlers stand in `follow` (ops that take their operands' specs),
`enumerate_specs` (parameters, iotas, reshapes) and `contractions` (dots, convolutions). This is `BuildStrategyAndCost`
of tensorflow-alpa's auto_sharding.cc.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from alpa_on_jax.xla_extension.auto_sharding.batch_dims import BatchDims
from alpa_on_jax.xla_extension.auto_sharding.communication import INFINITY_COST, Communication
from alpa_on_jax.xla_extension.auto_sharding.graph import Graph, Instruction
from alpa_on_jax.xla_extension.auto_sharding.options import SolverOptions
from alpa_on_jax.xla_extension.auto_sharding.specs import Mesh, Spec, is_replicated, replicated


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way of computing a value.

    Attributes:
        name: For reading; "allreduce @ [axes]" in it says that partial sums are reduced.
        spec: The spec of the value then.
        operand_specs: The spec that each operand must have; None for one that may have any.
        compute_cost, communication_cost: Of the op itself.
        all_reduce_axes: The axes over which its partial sums are reduced.
    """

    name: str
    spec: Spec
    operand_specs: tuple[Spec | None, ...] = ()
    compute_cost: float = 0.0
    communication_cost: float = 0.0
    all_reduce_axes: tuple[int, ...] = ()


@dataclass(eq=False, slots=True)
class Node:
    """A value as a variable of the ILP.

    Attributes:
        index: Its number in the ILP.
        instruction: The value.
        strategies: What may be chosen.
        following: The node whose choice decides this one's, if there is one.
        follows: Then, for each strategy, the number of the strategy of `following` that it goes with.
        specs: The strategies' specs, interned.
        communication_cost, compute_cost, memory_bytes: [strategies].
        edges: For each operand with a cost, its node and the cost [operand's strategies, strategies].
    """

    index: int
    instruction: Instruction
    strategies: tuple[Strategy, ...]
    following: "Node | None" = None
    follows: tuple[int, ...] = ()
    specs: tuple[Spec, ...] = ()
    compute_cost: np.ndarray = field(default_factory=lambda: np.zeros(0))
    communication_cost: np.ndarray = field(default_factory=lambda: np.zeros(0))
    memory_bytes: np.ndarray = field(default_factory=lambda: np.zeros(0))
    edges: list[tuple["Node", np.ndarray]] = field(default_factory=list)

    @property
    def root(self) -> "Node":
        """The node at the end of the chain of nodes that are followed."""
        node = self
        while node.following is not None:
            node = node.following
        return node


@dataclass(frozen=True, slots=True)
class Choices:
    """A handler's decision: strategies, and the node that they follow one by one, if any.

    Attributes:
        strategies: What may be chosen.
        following: The node to follow, with for each strategy the number of the one that it goes with.
        follows: See `following`.
        merge: Whether the value is no variable of its own then. Otherwise it only must go with what it follows.
    """

    strategies: tuple[Strategy, ...]
    following: Node | None = None
    follows: tuple[int, ...] = ()
    merge: bool = True


class StrategyBuilder:
    """The program, the mesh, and the nodes made so far, for the handlers.

    An op without a handler is computed as a whole by each device, its operands and results replicated; it is then among
    `without_strategies`.
    """

    def __init__(
        self,
        graph: Graph,
        batch: BatchDims,
        depths: dict[Instruction, int],
        aliases: dict[Instruction, Instruction],
        communication: Communication,
        options: SolverOptions,
        given: Mapping[Instruction, Spec],
    ):
        self.graph = graph
        self.batch = batch
        self.aliases = aliases
        self.communication = communication
        self.options = options
        self.given = given
        self.mesh: Mesh = communication.mesh
        self.replicated_penalty = communication.replicated_penalty
        self.nodes: dict[Instruction, Node] = {}
        self.without_strategies: list[Instruction] = []
        self._depths = depths
        self._depth_weight = 0.1 / max(1, *depths.values())
        self._max_tiles: dict[Node, int] = {}

    def build(self) -> list[Node]:
        """The nodes of all instructions, in program order."""
        for instruction in self.graph.instructions:
            handler = _HANDLERS.get(instruction.opcode)
            if handler is None:
                self.without_strategies.append(instruction)
                choices = Choices((self.replicated_strategy(instruction, 0.0),))
            else:
                choices = self._dividing(instruction, handler(self, instruction))
            self.nodes[instruction] = self._node(instruction, choices)
        return list(self.nodes.values())

    def _dividing(self, instruction: Instruction, choices: Choices) -> Choices:
        """The choices that split the value and its operands into equal parts; else it is replicated."""
        kept = [i for i, strategy in enumerate(choices.strategies) if not self.uneven_axes(instruction, strategy)]
        if len(kept) == len(choices.strategies):
            return choices
        if not kept:
            return Choices((self.replicated_strategy(instruction, 0.0),))
        strategies = tuple(choices.strategies[i] for i in kept)
        return replace(
            choices, strategies=strategies, follows=tuple(choices.follows[i] for i in kept if choices.follows)
        )

    def uneven_axes(self, instruction: Instruction, strategy: Strategy) -> frozenset[int]:
        """The axes along which a strategy splits the value or an operand unevenly.

        Alpa lets contractions and what follows them split so, which XLA pads. But an array that leaves the program
        so cannot be read, saved or given to the next step.
        """
        operands = zip(instruction.operands, strategy.operand_specs, strict=False)
        placed = [(instruction, strategy.spec), *((operand, spec) for operand, spec in operands if spec is not None)]
        return frozenset[int]().union(*(self.mesh.uneven_axes(spec, each.shape) for each, spec in placed))

    def _node(self, instruction: Instruction, choices: Choices) -> Node:
        strategies = choices.strategies
        node = Node(len(self.nodes), instruction, strategies)
        node.specs = self.communication.intern([strategy.spec for strategy in strategies])
        node.compute_cost = np.array([strategy.compute_cost for strategy in strategies])
        node.communication_cost = np.array([strategy.communication_cost for strategy in strategies])
        tiles = np.array([self.mesh.num_tiles(spec) for spec in node.specs])
        node.memory_bytes = instruction.size_bytes / tiles if instruction.opcode != "marker" else 0.0 / tiles
        if choices.merge:
            node.following, node.follows = choices.following, choices.follows
        followed = choices.following
        for i, operand in enumerate(instruction.operands):
            source = self.nodes[operand]
            if source is followed:
                node.edges.append((source, _follow_matrix(len(source.strategies), choices.follows)))
                followed = None  # an op may use a value twice and follow it once
                continue
            required = [s.operand_specs[i] if s.operand_specs else None for s in strategies]
            if operand.rank == 0 or all(spec is None for spec in required):
                continue
            targets = self.communication.intern([spec for spec in required if spec is not None])
            if len(targets) != len(required):
                raise ValueError(f"some strategies of {instruction} need a spec of operand {i} and some do not")
            matrix = self.communication.resharding_matrix(operand.size_bytes, source.specs, targets)
            node.edges.append((source, matrix))
        return node

    def replicated_strategy(self, instruction: Instruction, penalty: float) -> Strategy:
        """The value and its operands are replicated."""
        whole = tuple(replicated(operand.rank) for operand in instruction.operands)
        return Strategy("R", replicated(instruction.rank), whole, compute_cost=penalty)

    def choose_operand(self, instruction: Instruction, candidates: int | None = None) -> tuple[int, bool]:
        """The number of the operand to follow, and whether another one could be followed as well.

        The operand that can be split most is followed, among such the deepest (`ChooseOperandToFollow`).
        """
        best, tie, best_priority = -1, False, -1e20
        margin = 4 * self._depth_weight
        source = self.aliases.get(instruction)
        for i, operand in enumerate(instruction.operands[:candidates]):
            priority = self._max_num_tiles(operand) + self._depths[operand] * self._depth_weight
            if priority > best_priority + margin:
                best, tie, best_priority = i, False, priority
            elif priority >= best_priority - margin:
                tie = True
            if operand is source:  # an updated parameter follows the parameter
                break
        return best, tie

    def _max_num_tiles(self, instruction: Instruction) -> int:
        root = self.nodes[instruction].root
        tiles = self._max_tiles.get(root)
        if tiles is None:
            tiles = self._max_tiles[root] = max(self.mesh.num_tiles(spec) for spec in root.specs)
        return tiles


Handler = Callable[[StrategyBuilder, Instruction], Choices]
_HANDLERS: dict[str, Handler] = {}


def strategies_of(*opcodes: str) -> Callable[[Handler], Handler]:
    """Register the handler of `opcodes`."""

    def register(handler: Handler) -> Handler:
        _HANDLERS.update(dict.fromkeys(opcodes, handler))
        return handler

    return register


def spec_name(mesh: Mesh, spec: Spec) -> str:
    """A spec for reading: the number of parts along each dim."""
    return "R" if is_replicated(spec) else str([mesh.sizes[code] for code in spec])


def _follow_matrix(sources: int, follows: Sequence[int]) -> np.ndarray:
    matrix = np.full((sources, len(follows)), INFINITY_COST)
    matrix[list(follows), range(len(follows))] = 0.0
    return matrix
