"""The products that an instruction computes: matrix products, and convolutions as such.

Takes an instruction of a scheduled program; gives the sizes and the element type of each product in it, also in fusions
and in calls of cuBLAS and cuDNN. Invariant: the operations of a product are those that the instruction asks for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, prod

from alpa_cfp.targets.errors import HloTextError
from alpa_cfp.targets.hlo_text import Computation, Instruction, ScheduledModule, Shape

_CUBLAS, _CONVOLUTION = "__cublas", "__cudnn$conv"


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product, or a convolution as one.

    Attributes:
        batch: How many.
        rows, columns, contracted: Its sizes: (rows x contracted) times (contracted x columns).
        element_type: Of what is multiplied: `tf32` for float32 that may be rounded.
    """

    batch: int
    rows: int
    columns: int
    contracted: int
    element_type: str

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.batch * self.rows * self.columns * self.contracted


def products_of(module: ScheduledModule, computation: Computation, instruction: Instruction) -> Iterator[Product]:
    """The products that an instruction computes, those inside of fusions too.

    Raises:
        HloTextError: the compiler's configuration of a product cannot be read.
    """
    if instruction.opcode == "fusion":
        for called in module.called_by(instruction):
            for each in called.instructions:
                yield from products_of(module, called, each)
        return
    target = instruction.custom_call_target
    make = None
    if instruction.opcode == "dot":
        make = _dot
    elif target.startswith(_CUBLAS):
        make = _cublas
    elif instruction.opcode == "convolution" or target.startswith(_CONVOLUTION):
        make = _convolution
    if make is not None:
        try:
            yield make(instruction, computation.operands_of(instruction))
        except (IndexError, ValueError, ZeroDivisionError) as error:
            problem = f"its sizes do not make a product ({error})"
            raise HloTextError.at(instruction.line, instruction.name, problem) from error


def _dot(instruction: Instruction, operands: tuple[Instruction, ...]) -> Product:
    sides = [
        (instruction.numbers(f"{side}_batch_dims"), instruction.numbers(f"{side}_contracting_dims"))
        for side in ("lhs", "rhs")
    ]
    return _matrix_product(operands, sides, "high" in instruction.attributes.get("operand_precision", ""))


def _cublas(instruction: Instruction, operands: tuple[Instruction, ...]) -> Product:
    config = instruction.backend_config().get("gemm_backend_config", {})
    dims = config.get("dot_dimension_numbers", {})
    sides = [
        tuple(tuple(map(int, dims.get(f"{side}_{kind}_dimensions", ()))) for kind in ("batch", "contracting"))
        for side in ("lhs", "rhs")
    ]
    precision = config.get("precision_config", {}).get("operand_precision", ())
    return _matrix_product(operands, sides, any(each != "DEFAULT" for each in precision))


def _matrix_product(
    operands: tuple[Instruction, ...], sides: list[tuple[tuple[int, ...], ...]], exact: bool
) -> Product:
    """A product of the first two operands, of each of which `sides` has the batch dims and the contracted ones."""
    free = list[int]()
    for operand, (batch, contracted) in zip(operands, sides, strict=False):
        dims = operand.shapes[0].dims
        free.append(prod(size for dim, size in enumerate(dims) if dim not in batch and dim not in contracted))
    left, (batch, contracted) = operands[0].shapes[0], sides[0]
    sizes = prod(left.dims[dim] for dim in batch), prod(left.dims[dim] for dim in contracted)
    return Product(sizes[0], free[0], free[1], sizes[1], _multiplied(left, exact))


def _convolution(instruction: Instruction, operands: tuple[Instruction, ...]) -> Product:
    """A convolution as the product of its positions, its output features, and what is summed for each.

    cuDNN's calls have the labels of the forward one, whichever of input, kernel and output they compute.
    """
    first, second, result = operands[0].shapes[0], operands[1].shapes[0], instruction.shapes[0]
    target = instruction.custom_call_target
    exact = "high" in instruction.attributes.get("operand_precision", "")
    labels = instruction.attributes.get("dim_labels", "").replace("->", "_").split("_")
    kernel = result if "BackwardFilter" in target else second
    output = first if "BackwardInput" in target else second if "BackwardFilter" in target else result
    features = kernel.dims[labels[1].index("o")]
    summed, positions = kernel.elements // features, output.elements // features
    if "BackwardFilter" in target:
        rows, columns, contracted = features, summed, positions
    elif "BackwardInput" in target:
        taken = kernel.dims[labels[1].index("i")]
        rows, columns = result.elements // result.dims[labels[0].index("f")], taken
        # Of a strided one only some positions of the kernel meet an output.
        contracted = ceil(output.elements * summed / (rows * columns))
    else:
        rows, columns, contracted = positions, features, summed
    return Product(1, rows, columns, contracted, _multiplied(first, exact))


def _multiplied(shape: Shape, exact: bool) -> str:
    return "tf32" if shape.element_type == "f32" and not exact else shape.element_type
