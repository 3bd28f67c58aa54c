"""The final spec of each value of a program: the ILP's solution, and the changes of later passes.

`SetHloSharding` of tensorflow-alpa's auto_sharding.cc reads it off the solution; `reduce_scatter` changes it.
"""

from dataclasses import dataclass, field

from alpa_on_jax.xla_extension.auto_sharding import specs
from alpa_on_jax.xla_extension.auto_sharding.graph import Graph, Instruction
from alpa_on_jax.xla_extension.auto_sharding.opcodes import ELEMENTWISE
from alpa_on_jax.xla_extension.auto_sharding.solver import Solution
from alpa_on_jax.xla_extension.auto_sharding.specs import Mesh, Spec, replicated

_SAME = ELEMENTWISE | {"reverse"}
_CONTRACTING = ("dot_general", "convolution", "reduce")


@dataclass(slots=True)
class Placement:
    """The specs of a program's values.

    Attributes:
        solution: What the ILP chose.
        changed: Values with another spec than it chose.
        gathered: Values of which every user gets a copy with the spec given here.
        private: Pairs (user, operand) for which the operand is brought into place for this one use alone.
    """

    solution: Solution
    mesh: Mesh
    changed: dict[Instruction, Spec] = field(default_factory=dict)
    gathered: dict[Instruction, Spec] = field(default_factory=dict)
    private: set[tuple[Instruction, Instruction]] = field(default_factory=set)

    def spec(self, instruction: Instruction) -> Spec:
        """The spec of a value."""
        changed = self.changed.get(instruction)
        return self.computed_spec(instruction) if changed is None else changed

    def seen_spec(self, instruction: Instruction) -> Spec:
        """The spec of a value for its users."""
        gathered = self.gathered.get(instruction)
        return self.spec(instruction) if gathered is None else gathered

    def computed_spec(self, instruction: Instruction) -> Spec:
        """The spec with which a value comes out of its op, before it is moved to the changed one.

        A contraction or reduction is computed as it was; its partial sums are then reduced and split in one, which is a
        reduce-scatter. A marker hands on what goes into it, so that a value has the same spec in both stages.
        """
        if instruction.opcode == "marker":
            return self._even(instruction)
        if instruction.opcode in _CONTRACTING or instruction not in self.changed:
            return self.solution.strategy(instruction).spec
        return self.changed[instruction]

    def required_specs(self, instruction: Instruction) -> tuple[Spec | None, ...]:
        """The spec that each operand must have; None where it does not matter."""
        if instruction.opcode == "marker":
            return (self._even(instruction),)
        strategy = self.solution.strategy(instruction)
        spec = self.computed_spec(instruction)
        if spec != strategy.spec:
            return tuple(self._required(instruction, operand, spec) for operand in instruction.operands)
        if self._is_duplicated(instruction):
            return tuple(self.seen_spec(operand) for operand in instruction.operands)
        required = strategy.operand_specs or (None,) * len(instruction.operands)
        if instruction.opcode == "reduce":
            # What was split is reduced in parts: its small result is moved, not the operand.
            return tuple(
                None if operand in self.changed else spec
                for operand, spec in zip(instruction.operands, required, strict=True)
            )
        return required

    def _even(self, marker: Instruction) -> Spec:
        """How a value goes through a marker: in equal parts, into which alpa cuts what leaves a program."""
        spec = self.seen_spec(marker.operands[0])
        return tuple(
            code if size % self.mesh.sizes[code] == 0 else 0 for size, code in zip(marker.shape, spec, strict=True)
        )

    @staticmethod
    def _required(instruction: Instruction, operand: Instruction, spec: Spec) -> Spec | None:
        if instruction.opcode == "transpose":
            return specs.transpose(spec, [instruction.dims.index(dim) for dim in range(operand.rank)])
        if instruction.opcode in _SAME and operand.rank:
            return spec if operand.rank == len(spec) else replicated(operand.rank)
        return None

    def _is_duplicated(self, instruction: Instruction) -> bool:
        """Whether a contraction that would be summed over devices finds its operands whole: each computes it all."""
        if instruction.opcode not in ("dot_general", "convolution"):
            return False
        if not self.solution.strategy(instruction).all_reduce_axes:
            return False
        dot, conv = instruction.dot, instruction.conv
        if dot is not None:
            dims = (dot.lhs_contracting, dot.rhs_contracting)
        else:
            assert conv is not None
            dims = (conv.lhs_feature, conv.rhs_in_feature)
        return not any(self.seen_spec(operand)[dim] for operand, dim in zip(instruction.operands, dims, strict=True))


def is_undecided(instruction: Instruction) -> bool:
    """Whether a value costs nothing to make, so that each user gets its own, with the spec it needs."""
    if instruction.opcode == "broadcast_in_dim":
        return not instruction.is_output and is_undecided(instruction.operands[0])
    return instruction.opcode in ("constant", "iota") and not instruction.is_output


def boundary_specs(placement: Placement, graph: Graph) -> tuple[tuple[Spec, ...], tuple[Spec, ...]]:
    """The specs of a program's parameters and results."""
    inputs = tuple(placement.spec(parameter) for parameter in graph.parameters)
    return inputs, tuple(placement.seen_spec(result) for result in graph.results)
