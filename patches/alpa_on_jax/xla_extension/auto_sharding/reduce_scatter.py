"""Split what is computed alike on all devices behind an all-reduce, which then becomes a reduce-scatter.

Behind the all-reduce of a gradient every device updates the whole parameter and its optimizer state. Where that needs
no more communication than one all-gather, each device can update its part instead (ZeRO). Takes the ILP's solution as a
`Placement` and changes it. Source: `GenerateReduceScatter` in tensorflow-alpa's auto_sharding_util.cc, with its
all-gathers behind the update.
"""

from dataclasses import dataclass, field

from alpa_on_jax.xla_extension.auto_sharding.graph import Graph, Instruction
from alpa_on_jax.xla_extension.auto_sharding.options import SolverOptions
from alpa_on_jax.xla_extension.auto_sharding.placement import Placement
from alpa_on_jax.xla_extension.auto_sharding.specs import (
    BOTH,
    BOTH_SWAPPED,
    FIRST,
    NONE,
    Mesh,
    Spec,
    is_replicated,
    same_placement,
    transpose,
)
from alpa_on_jax.xla_extension.auto_sharding.strategies import Strategy

# Fewer values than these are not worth an all-gather (Alpa's number).
_MIN_SPLIT_VALUES = 5

# Sets that keep the order in which things were found, so that the same program gives the same result.
OrderedSet = dict[Instruction, None]


@dataclass(slots=True)
class _Region:
    """The values around one all-reduce that all devices compute alike.

    Attributes:
        inside: Values that could be split together.
        boundary: Values beside them that have a user which needs them whole.
        consumers: Values that were reached as users of others.
        transposed: The transpose on the way, of which there may be one.
    """

    inside: OrderedSet = field(default_factory=dict)
    boundary: OrderedSet = field(default_factory=dict)
    consumers: OrderedSet = field(default_factory=dict)
    transposed: Instruction | None = None


def generate_reduce_scatters(
    graph: Graph,
    placement: Placement,
    aliases: dict[Instruction, Instruction],
    depths: dict[Instruction, int],
    mesh: Mesh,
    options: SolverOptions,
) -> None:
    """Change `placement` so that all-reduces become reduce-scatters where that is worth it.

    Args:
        graph: The program.
        placement: The specs of its values; changed in place.
        aliases: For each result of the program that takes a donated parameter's buffer, that parameter.
        depths: See `depths`.
        mesh: The logical mesh.
        options: See `SolverOptions`.
    """
    pass_ = _Pass(placement, aliases, depths, mesh, options)
    for instruction in graph.instructions:
        if pass_.may_scatter(instruction):
            pass_.scatter(instruction)


class _Pass:
    def __init__(
        self,
        placement: Placement,
        aliases: dict[Instruction, Instruction],
        depths: dict[Instruction, int],
        mesh: Mesh,
        options: SolverOptions,
    ):
        self._placement = placement
        self._aliases = aliases
        self._depths = depths
        self._mesh = mesh
        self._options = options

    def may_scatter(self, instruction: Instruction) -> bool:
        """Whether partial sums are reduced here, and nothing around has been changed yet."""
        changed = self._placement.changed
        if instruction in changed or any(operand in changed for operand in instruction.operands):
            return False
        if instruction.opcode == "reduce":
            if instruction.rank != 1:
                return False
        elif instruction.opcode == "dot_general":
            if all(is_replicated(self._strategy(operand).spec) for operand in instruction.operands):
                return False  # every device computes it whole
        elif instruction.opcode != "convolution":
            return False
        return bool(self._strategy(instruction).all_reduce_axes)

    def scatter(self, instruction: Instruction) -> None:
        """Split the values behind the all-reduce of `instruction`, if parameters get split by it."""
        strategy = self._strategy(instruction)
        region = self._region(instruction, strategy)
        self._join_boundary(region)
        gathered = self._gathered(region)
        parameters = sum(value.opcode == "parameter" for value in region.inside)
        parameters += sum(self._is_updated_parameter(value) for value in gathered)
        if parameters == 0 or len(gathered) > 1 or len(region.inside) < _MIN_SPLIT_VALUES:
            return
        spec = scattered_spec(instruction, strategy, self._mesh)
        if spec is None:
            return
        if strategy.name.startswith("RR = RS x SR"):
            region.inside.pop(instruction, None)
        if self._options.reduce_scatter_grad_acc_friendly:
            _keep_accumulation_whole(region.inside, instruction)
        for value in region.inside:
            self._split(value, spec, instruction, region)
        for value in gathered:
            if self._options.reduce_scatter_aggressive_partition:
                self._split(value, spec, instruction, region)
                if self._is_updated_parameter(value):
                    self._split_parameter(self._aliases[value], spec, instruction, region)
            else:
                self._split_and_gather(value, spec, instruction, region)

    def _region(self, start: Instruction, strategy: Strategy) -> _Region:
        region = _Region()
        visited: set[Instruction] = set()
        stack = [start]
        while stack:
            value = stack.pop()
            if value in visited:
                continue
            visited.add(value)
            users = self._users_with_alias(value)
            if any(self._needs_whole(value, user, strategy, region) for user in users):
                region.boundary[value] = None
                continue
            region.inside[value] = None
            for user in users:
                if user not in visited:
                    region.consumers[user] = None
            around = [*users, *(o for o in value.operands if self._is_alike(o, value, strategy))]
            stack += [other for other in reversed(around) if other not in visited]
        return region

    def _users_with_alias(self, value: Instruction) -> list[Instruction]:
        """The users of a value, and of the parameter whose buffer it takes."""
        parameter = self._aliases.get(value)
        further = parameter.users if parameter is not None else []
        return list(dict.fromkeys([*value.users, *further]))

    def _needs_whole(self, value: Instruction, user: Instruction, strategy: Strategy, region: _Region) -> bool:
        shape = value.shape
        if user.opcode == "transpose" and (region.transposed is None or region.transposed.shape == user.shape):
            region.transposed = user
            shape = user.shape
        ends_in_marker = user.opcode == "marker" and not user.users and not user.is_output
        converts_parameter = user.opcode == "convert" and value.opcode == "parameter"
        return (
            ends_in_marker
            or converts_parameter
            or not same_placement(self._strategy(user).spec, strategy.spec)
            or user.shape != shape
        )

    def _is_alike(self, operand: Instruction, value: Instruction, strategy: Strategy) -> bool:
        return (
            not _is_always_whole(operand)
            and same_placement(self._strategy(operand).spec, strategy.spec)
            and operand.shape == value.shape
        )

    @staticmethod
    def _join_boundary(region: _Region) -> None:
        """Shrink a boundary of two values to their common source, if they come from it through ops of one operand."""
        if len(region.boundary) != 2:
            return
        path: OrderedSet = {}
        ends = set()
        for value in region.boundary:
            while len(value.operands) == 1:
                if value.operands[0] in region.inside:
                    path[value] = None
                (value,) = value.operands
            ends.add(value)
        if len(ends) != 1:
            return
        (ancestor,) = ends
        region.boundary = {ancestor: None}
        region.consumers[ancestor] = None
        for value in path:
            region.inside.pop(value, None)

    def _gathered(self, region: _Region) -> list[Instruction]:
        """The values of the boundary that have to be gathered for their users."""
        gathered = []
        for value in region.boundary:
            if value in region.consumers:
                if not value.is_output and all(user.opcode == "reduce" for user in value.users):
                    region.inside[value] = None  # what a reduction makes of it is small
                else:
                    gathered.append(value)
        if len(gathered) != 1:
            return gathered
        path = [gathered[0]]
        while path[-1].opcode == "marker":
            path.append(path[-1].operands[0])
        root = path[-1]
        if root.opcode != "parameter":
            return gathered
        # Not the parameter is gathered, before it is used, but its new value, once it is made.
        for value in path:
            region.inside.pop(value, None)
        updated = next((value for value in region.inside if self._aliases.get(value) is root), None)
        return [] if updated is None else [updated]

    def _is_updated_parameter(self, value: Instruction) -> bool:
        return value.is_output and not value.users and value in self._aliases

    def _split(self, value: Instruction, spec: Spec, origin: Instruction, region: _Region) -> None:
        if value.shape == origin.shape:
            self._placement.changed[value] = spec
        elif region.transposed is not None:
            self._placement.changed[value] = transpose(spec, region.transposed.dims)

    def _split_and_gather(self, value: Instruction, spec: Spec, origin: Instruction, region: _Region) -> None:
        whole = self._strategy(value).spec
        if value.opcode == "marker" and self._is_only_returned(value):
            # Gathered in front of the marker, so that it happens in the stage that the marker ends.
            (source,) = value.operands
            self._placement.changed.pop(value, None)
            self._placement.gathered[source] = self._strategy(source).spec
        else:
            self._split(value, spec, origin, region)
            self._placement.gathered[value] = whole

    @staticmethod
    def _is_only_returned(value: Instruction) -> bool:
        return value.is_output and not value.users

    def _split_parameter(self, parameter: Instruction, spec: Spec, origin: Instruction, region: _Region) -> None:
        """Split a parameter, and what is made of it by ops of one use (a conversion), until it is really used."""
        value = parameter
        self._split(value, spec, origin, region)
        while len(value.users) == 1 and value.users[0].shape == value.shape and value.users[0].dot is None:
            (value,) = value.users
            self._split(value, spec, origin, region)
        contractions = [user for user in value.users if user.opcode in ("dot_general", "convolution")]
        if contractions:
            # Gathered for the forward pass alone: the backward pass gathers again instead of keeping it.
            first = min(contractions, key=self._depths.__getitem__)
            self._placement.private.add((first, value))

    def _strategy(self, instruction: Instruction) -> Strategy:
        return self._placement.solution.strategy(instruction)


def scattered_spec(instruction: Instruction, strategy: Strategy, mesh: Mesh) -> Spec | None:
    """The spec of the result of `instruction` when its all-reduce is a reduce-scatter; None if it cannot be split.

    The axes of the all-reduce split the first dim that is free (`GetReduceScatterOutput`).
    """
    code = NONE
    for axis in strategy.all_reduce_axes:
        code |= mesh.code(axis)
    spec = list(strategy.spec)
    if instruction.dot is not None:
        dims = (instruction.dot.out_lhs, instruction.dot.out_rhs)
    elif instruction.conv is not None:
        dims = (instruction.conv.out_batch, instruction.conv.out_feature)
    else:
        dims = (0,)
    free = next((dim for dim in dims if spec[dim] == NONE), None)
    if free is not None:
        spec[free] = code
    elif instruction.opcode == "reduce":
        spec[0] = BOTH if spec[0] == FIRST else BOTH_SWAPPED
    else:
        return None
    if any(size % mesh.sizes[split] for size, split in zip(instruction.shape, spec, strict=True)):
        return None
    return tuple(spec)


def _keep_accumulation_whole(inside: OrderedSet, instruction: Instruction) -> None:
    """Take the gradient, its sum over micro-batches, and the accumulator out of what is split.

    Then the gradient can be summed over devices once, after the last micro-batch.
    """
    if len(instruction.users) != 1:
        return
    (value,) = instruction.users
    if value.opcode in ("marker", "transpose"):
        if len(value.users) != 1:
            return
        (value,) = value.users
    if value.opcode != "add":
        return
    while len(value.users) == 1 and value.users[0].opcode == "add":
        (value,) = value.users
    if len(value.users) == 1 and value.users[0].opcode == "marker":
        (value,) = value.users
    stack = [value]
    while stack:
        value = stack.pop()
        if value in inside:
            del inside[value]
            stack += value.operands


def _is_always_whole(instruction: Instruction) -> bool:
    """Whether a value is a constant or a scalar, possibly broadcast."""
    if instruction.opcode == "broadcast_in_dim":
        return _is_always_whole(instruction.operands[0])
    return instruction.opcode == "constant" or instruction.rank == 0
