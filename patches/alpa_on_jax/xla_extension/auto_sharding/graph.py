"""A program as a graph of instructions, as Alpa's auto-sharding pass saw it in HLO: one instruction for each value.

Takes a StableHLO module in the form that `simplify` gives it. An instruction knows its operands and users, what its
opcode says about dims, and the MLIR value it stands for. There are no tuples: an op with several results has an
instruction for each of them, of which the first is the op itself and the others follow it, and alpa's pipeline markers
are instructions of one operand. Invariant: operands come before their users.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.builders import numpy_dtype
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.ir.op_kinds import is_made_over_devices
from alpa_cfp.spmd.module.stages import MARKER


@dataclass(frozen=True, slots=True)
class DotDims:
    """Dimension numbers of a canonical dot: batch dims, then one free and one contracting dim on each side."""

    lhs_batch: tuple[int, ...]
    rhs_batch: tuple[int, ...]
    lhs_contracting: int
    rhs_contracting: int
    lhs_free: int
    rhs_free: int

    @property
    def out_lhs(self) -> int:
        return len(self.lhs_batch)

    @property
    def out_rhs(self) -> int:
        return len(self.lhs_batch) + 1


@dataclass(frozen=True, slots=True)
class ConvDims:
    """Dimension numbers of a convolution."""

    lhs_batch: int
    lhs_feature: int
    rhs_in_feature: int
    rhs_out_feature: int
    out_batch: int
    out_feature: int
    feature_groups: int
    batch_groups: int


@dataclass(eq=False, slots=True)
class Instruction:
    """One value of a program.

    Attributes:
        index: Its place in the program.
        opcode: The name of the op without dialect; "parameter"; "marker" of a value that goes through a pipeline
            marker; "result" of the second and later results of an op.
        shape: Its dims.
        size_bytes: The size of the whole value.
        value: The MLIR value.
        operands: The instructions it is computed from.
        users: The instructions that use it, each once, in program order; the program's results are not users.
        dims: What the opcode says of dims: of a transpose its permutation, of a broadcast where the operand's dims go,
            of a reduction, sort or reverse the dims along which it works.
        window: Of a windowed op the window's size along each dim.
        dot, conv: Of a contraction what its dims mean.
        gather_window_dims: Of a gather or scatter, dims of the result that are dims of the operand, whole.
        is_output: Whether the program returns it.
        is_integer: Whether its elements are integers; booleans are not.
        is_splat: Of a constant, whether all elements are equal.
        is_made_whole: Of a reduction, whether the reduced dims must be whole on each device (see `reducers`).
        stage: Of a marker its name and kind, "name$start".
    """

    index: int
    opcode: str
    shape: tuple[int, ...]
    size_bytes: float
    value: Value
    operands: list["Instruction"] = field(default_factory=list)
    users: list["Instruction"] = field(default_factory=list)
    dims: tuple[int, ...] = ()
    window: tuple[int, ...] = ()
    dot: DotDims | None = None
    conv: ConvDims | None = None
    gather_window_dims: tuple[int, ...] = ()
    is_output: bool = False
    is_integer: bool = False
    is_splat: bool = False
    is_made_whole: bool = False
    stage: str = ""

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __repr__(self) -> str:
        operands = ", ".join(f"%{operand.index}" for operand in self.operands)
        return f"%{self.index} = {self.opcode}({operands}) {list(self.shape)}"


@dataclass(frozen=True, slots=True)
class Graph:
    """A program.

    Attributes:
        instructions: All values, in program order.
        parameters: Those of the parameters, in order.
        results: The values that the program returns, in order.
    """

    instructions: tuple[Instruction, ...]
    parameters: tuple[Instruction, ...]
    results: tuple[Instruction, ...]


def build_graph(main: Operation) -> Graph:
    """The graph of a function; values that are not tensors (tokens) are left out."""
    instructions: list[Instruction] = []
    of_value: dict[Value, Instruction] = {}

    def add(opcode: str, value: Value, operands: Sequence[Instruction]) -> Instruction:
        tensor = mlir.tensor_type(value)
        dtype = numpy_dtype(tensor.element_type)
        shape = tuple(tensor.shape)
        size_bytes = float(math.prod(shape) * dtype.itemsize)
        new = Instruction(len(instructions), opcode, shape, size_bytes, value, list(operands))
        new.is_integer = dtype.kind in "iu"
        instructions.append(new)
        of_value[value] = new
        for operand in dict.fromkeys(operands):
            operand.users.append(new)
        return new

    block = mlir.entry_block(main)
    parameters = tuple(add("parameter", argument, ()) for argument in block.arguments)
    operations = mlir.block_operations(block)
    for op in operations[:-1]:
        operands = [of_value[operand] for operand in op.operands if operand in of_value]
        if op.name == "stablehlo.optimization_barrier":
            stage = ir.StringAttr(op.attributes[MARKER]).value if MARKER in op.attributes else ""
            for operand, result in zip(op.operands, op.results, strict=True):
                if operand in of_value:
                    add("marker", result, [of_value[operand]]).stage = stage
            continue
        results = [result for result in op.results if isinstance(result.type, ir.RankedTensorType)]
        if not results:
            continue
        first = add(op.name.rsplit(".", 1)[-1], results[0], operands)
        _read_attributes(first, op)
        for result in results[1:]:
            add("result", result, [first])
    results = tuple(of_value[value] for value in operations[-1].operands)
    for result in results:
        result.is_output = True
    return Graph(tuple(instructions), parameters, results)


def _read_attributes(instruction: Instruction, op: Operation) -> None:
    reader = _READERS.get(instruction.opcode)
    if reader is not None:
        reader(instruction, op)


def _int_array_reader(name: str) -> Any:
    def read(instruction: Instruction, op: Operation) -> None:
        instruction.dims = tuple(mlir.int_array(op, name))

    return read


def _read_reduction(instruction: Instruction, op: Operation) -> None:
    instruction.dims = tuple(mlir.int_array(op, "dimensions"))
    instruction.is_made_whole = not is_made_over_devices(op)


def _read_sort(instruction: Instruction, op: Operation) -> None:
    instruction.dims = (mlir.integer(op, "dimension"),)


def _read_constant(instruction: Instruction, op: Operation) -> None:
    instruction.is_splat = ir.DenseElementsAttr(op.attributes["value"]).is_splat


def _read_window(instruction: Instruction, op: Operation) -> None:
    instruction.window = tuple(mlir.int_array(op, "window_dimensions"))


def _read_dot(instruction: Instruction, op: Operation) -> None:
    numbers = stablehlo.DotDimensionNumbers(op.attributes["dot_dimension_numbers"])
    lhs, rhs = instruction.operands
    batch = tuple(numbers.lhs_batching_dimensions), tuple(numbers.rhs_batching_dimensions)
    contracting = tuple(numbers.lhs_contracting_dimensions), tuple(numbers.rhs_contracting_dimensions)
    free = tuple(
        tuple(dim for dim in range(operand.rank) if dim not in batch[side] and dim not in contracting[side])
        for side, operand in enumerate((lhs, rhs))
    )
    if any(len(dims) != 1 for dims in (*contracting, *free)):
        raise ValueError(f"{instruction} is not canonical: simplify the module first")
    instruction.dot = DotDims(*batch, contracting[0][0], contracting[1][0], free[0][0], free[1][0])


def _read_conv(instruction: Instruction, op: Operation) -> None:
    numbers = stablehlo.ConvDimensionNumbers(op.attributes["dimension_numbers"])
    instruction.conv = ConvDims(
        lhs_batch=numbers.input_batch_dimension,
        lhs_feature=numbers.input_feature_dimension,
        rhs_in_feature=numbers.kernel_input_feature_dimension,
        rhs_out_feature=numbers.kernel_output_feature_dimension,
        out_batch=numbers.output_batch_dimension,
        out_feature=numbers.output_feature_dimension,
        feature_groups=mlir.integer(op, "feature_group_count"),
        batch_groups=mlir.integer(op, "batch_group_count"),
    )


def _read_gather(instruction: Instruction, op: Operation) -> None:
    numbers = stablehlo.GatherDimensionNumbers(op.attributes["dimension_numbers"])
    instruction.gather_window_dims = _whole_dims(instruction, tuple(numbers.offset_dims))


def _read_scatter(instruction: Instruction, op: Operation) -> None:
    numbers = stablehlo.ScatterDimensionNumbers(op.attributes["scatter_dimension_numbers"])
    updates = instruction.operands[-1]
    dims = _whole_dims(instruction, tuple(numbers.update_window_dims))
    instruction.gather_window_dims = tuple(
        dim for dim in dims if dim < updates.rank and updates.shape[dim] == instruction.shape[dim]
    )


def _whole_dims(instruction: Instruction, dims: Sequence[int]) -> tuple[int, ...]:
    """The dims that have the same place and size in the operand: Alpa's pass expects all of them to."""
    operand = instruction.operands[0]
    return tuple(
        dim
        for dim in dims
        if dim < min(operand.rank, instruction.rank) and operand.shape[dim] == instruction.shape[dim]
    )


_READERS = {
    "transpose": _int_array_reader("permutation"),
    "broadcast_in_dim": _int_array_reader("broadcast_dimensions"),
    "reduce": _read_reduction,
    "reverse": _int_array_reader("dimensions"),
    "sort": _read_sort,
    "constant": _read_constant,
    "reduce_window": _read_window,
    "select_and_scatter": _read_window,
    "dot_general": _read_dot,
    "convolution": _read_conv,
    "gather": _read_gather,
    "scatter": _read_scatter,
}
