"""The values that a loop carries and that need a barrier between the steps of the unrolled loop.

Takes a loop's body; gives positions among the carried values. Without a barrier, a compiler that fuses may compute such
a value again in each of its users, from the first step on. Invariants: every other carried value grows by at most one
op a step, or is a constant in each step; calls in the body are inlined.
"""

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
from jax.extend import core

from alpa_cfp.jit.jaxprs import called

_ADDITIONS = frozenset({"add", "add_any"})


def values_with_barriers(body: Any, consts: int, carried: int) -> tuple[int, ...]:
    """Returns the positions of the carried values that need a barrier.

    Excluded are values that are passed on unchanged, integer scalars that count steps (constants in each step), and
    sums that nothing uses before the last step, which may be summed over devices once.

    Args:
        body: The jaxpr of a loop's body.
        consts: The number of its parameters that are equal in each step; the carried ones follow.
        carried: The number of values that it carries.
    """
    flat = _Flat()
    inputs = [flat.number() for _ in body.invars]
    outputs = flat.read(body, inputs)
    flat.uses.update(outputs)

    def is_computed(before: int, after: int | None, aval: Any) -> bool:
        made_by = None if after is None else flat.made_by.get(after)
        if made_by is None or (aval.shape == () and jnp.issubdtype(aval.dtype, jnp.integer)):
            return False
        name, operands = made_by
        is_sum = name in _ADDITIONS and before in operands and flat.uses[before] == flat.uses[after] == 1
        return not is_sum

    before_values = inputs[consts : consts + carried]
    avals = [var.aval for var in body.invars[consts : consts + carried]]
    triples = zip(before_values, outputs[:carried], avals, strict=True)
    return tuple(position for position, triple in enumerate(triples) if is_computed(*triple))


@dataclass
class _Flat:
    """A jaxpr with inlined calls. Values are numbers; literals and constants are None.

    Attributes:
        made_by: For each value that an equation computes the primitive's name and the operands.
        uses: The number of uses of each value as an operand.
    """

    made_by: dict[int, tuple[str, list[int | None]]] = field(default_factory=dict)
    uses: Counter[int | None] = field(default_factory=Counter)
    _numbers: Any = field(default_factory=itertools.count)

    def number(self) -> int:
        """Returns a new number."""
        return next(self._numbers)

    def read(self, jaxpr: Any, inputs: Sequence[int | None]) -> list[int | None]:
        """Adds the equations of a jaxpr that is called with `inputs`; returns its results."""
        env: dict[Any, int | None] = dict(zip(jaxpr.invars, inputs, strict=True))

        def numbers(atoms: Sequence[Any]) -> list[int | None]:
            return [None if isinstance(atom, core.Literal) else env.get(atom) for atom in atoms]

        for eqn in jaxpr.eqns:
            operands, inner = numbers(eqn.invars), called(eqn)
            if inner is not None:
                results = self.read(inner[0], operands)
            else:
                self.uses.update(operands)
                results = [self.number() for _ in eqn.outvars]
                self.made_by.update(dict.fromkeys(results, (eqn.primitive.name, operands)))
            env.update(zip(eqn.outvars, results, strict=True))
        return numbers(jaxpr.outvars)
