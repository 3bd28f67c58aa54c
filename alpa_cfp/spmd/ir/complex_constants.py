"""Complex constants as pairs of real ones, because MLIR's Python bindings cannot read complex ones.

Takes a parsed module; puts `stablehlo.complex` of two real constants in the place of each complex constant. Invariant:
the numbers are the same, bit for bit.
"""

import re
from typing import Any

import numpy as np
from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation

_LITERAL = re.compile(r"dense<(.*)> : tensor<", re.DOTALL)
_PAIR = re.compile(r"\(([^(),]+),([^(),]+)\)")
# Large constants are written as the bytes of their elements.
_BYTES = re.compile(r'"0x([0-9A-Fa-f]*)"')
_DTYPES = {"f32": np.complex64, "f64": np.complex128}


def split_complex_constants(module: Any) -> None:
    """Replace the complex constants of `module`."""
    for function in mlir.functions(module).values():
        for op in list(mlir.walk(mlir.entry_block(function))):
            if op.name == "stablehlo.constant":
                element = ir.RankedTensorType(op.results[0].type).element_type
                if isinstance(element, ir.ComplexType):
                    _split(op, ir.ComplexType(element).element_type)


def _split(op: Operation, element_type: ir.Type) -> None:
    tensor = ir.RankedTensorType(op.results[0].type)
    with ir.InsertionPoint(op), op.location:
        real_type = ir.RankedTensorType.get(tensor.shape, element_type)
        parts = [
            mlir.create("stablehlo.constant", [real_type], [], {"value": value}).results[0]
            for value in _parts(op, real_type)
        ]
        new = mlir.create("stablehlo.complex", [tensor], parts).results[0]
    op.results[0].replace_all_uses_with(new)
    op.erase()


def _parts(op: Operation, real_type: ir.RankedTensorType) -> list[Any]:
    """The real and the imaginary parts, as attributes."""
    literal = _LITERAL.search(str(op))
    assert literal is not None
    written = _BYTES.fullmatch(literal[1])
    if written is None:
        texts = (_PAIR.sub(rf"\{part}", literal[1]) for part in (1, 2))
        return [ir.Attribute.parse(f"dense<{text}> : {real_type}") for text in texts]
    numbers = np.frombuffer(bytes.fromhex(written[1]), _DTYPES[str(real_type.element_type)])
    numbers = np.broadcast_to(numbers.reshape(real_type.shape if numbers.size > 1 else ()), real_type.shape)
    return [mlir.dense(np.ascontiguousarray(part)) for part in (numbers.real, numbers.imag)]
