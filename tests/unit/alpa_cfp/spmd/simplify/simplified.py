"""A program before and after simplification: its operations and what it computes.

Takes a JAX function and arrays, or StableHLO text. Invariant: `simplified` has run both programs and compared every
result, so what it gives back computes the same values.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition.xla import leave_to_xla
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.spmd.simplify import is_canonical_dot, simplify
from unit.alpa_cfp.spmd.helpers import annotate, assert_parts_equal, load, lower, place

ONE_DEVICE = LogicalMesh((1, 1))


@dataclass(frozen=True)
class Simplified:
    """What is left of a program.

    Attributes:
        ops: The names of the operations in program order, without dialect, constants and the return.
        all_dots_canonical: Whether every dot has the canonical form.
        text: The whole program.
    """

    ops: tuple[str, ...]
    all_dots_canonical: bool
    text: str

    @property
    def counts(self) -> Counter[str]:
        return Counter(self.ops)


def simplified(function: Callable[..., Any], *arguments: Any, tolerance: float = 1e-6) -> Simplified:
    """`function` simplified; results before and after agree to `tolerance`, relative to each one's largest entry."""
    return simplified_module(lower(function, arguments), jax.tree.leaves(arguments), tolerance)


def simplified_text(text: str, *arguments: np.ndarray) -> Simplified:
    """The same for StableHLO text with one function `main`."""
    return simplified_module(HloModule.from_stablehlo("tested", text), arguments, 1e-6)


def simplified_module(module: HloModule, arguments: Sequence[Any], tolerance: float) -> Simplified:
    """The same for a module and its flat arguments."""
    bytecode, result = mlir.edit(module.bytecode, _simplify_and_look)
    expected = [np.asarray(part) for part in _run(replace(module), arguments)]
    assert_parts_equal(_run(replace(module, bytecode=bytecode), arguments), expected, tolerance)
    return result


def simplify_and_look(text: str) -> Simplified:
    """StableHLO text simplified without running it."""
    return mlir.edit(HloModule.from_stablehlo("tested", text).bytecode, _simplify_and_look)[1]


def _simplify_and_look(module: Any) -> Simplified:
    simplify(module)
    module.operation.verify()
    ops = mlir.block_operations(mlir.entry_block(mlir.main_function(module)))
    names = (op.name.removeprefix("stablehlo.") for op in ops)
    dots = [op for op in ops if op.name == "stablehlo.dot_general"]
    return Simplified(
        tuple(name for name in names if name not in ("constant", "func.return")),
        all(is_canonical_dot(dot) for dot in dots),
        mlir.to_text(module),
    )


def _run(module: HloModule, arguments: Sequence[Any]) -> list[jax.Array]:
    annotate(module, ONE_DEVICE)
    executable = load(module, leave_to_xla(module, "tested on one device"))
    return executable.execute_sharded_on_local_devices(place(executable, arguments))
