"""Which values that a loop carries must be kept from being computed again in each of their users.

Takes a loop's body; gives positions among the carried values. Once the loop is unrolled, a compiler that fuses may
compute such a value again, from the first step on, wherever it is used. Invariants: what is not among them grows by at
most one op a step, or is a constant in each step; calls in the body are looked into.
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


def computed_from_step_to_step(body: Any, consts: int, carried: int) -> tuple[int, ...]:
    """The positions of the values that must be kept.

    Not what is handed on as it is; nor numbers that count steps, which are constants in each step; nor sums, which
    nothing uses before the last step: they may be summed over devices once.

    Args:
        body: The jaxpr of a loop's body.
        consts: How many of its parameters are the same in each step; the carried ones follow.
        carried: How many values it carries.
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

    befores = inputs[consts : consts + carried]
    avals = [var.aval for var in body.invars[consts : consts + carried]]
    triples = zip(befores, outputs[:carried], avals, strict=True)
    return tuple(position for position, triple in enumerate(triples) if is_computed(*triple))


@dataclass
class _Flat:
    """A jaxpr with its calls inlined: values are numbers, literals and constants None.

    Attributes:
        made_by: For each value that an equation makes the primitive's name and the operands.
        uses: How often each value is an operand.
    """

    made_by: dict[int, tuple[str, list[int | None]]] = field(default_factory=dict)
    uses: Counter[int | None] = field(default_factory=Counter)
    _numbers: Any = field(default_factory=itertools.count)

    def number(self) -> int:
        """A value that there was not before."""
        return next(self._numbers)

    def read(self, jaxpr: Any, inputs: Sequence[int | None]) -> list[int | None]:
        """Add the equations of a jaxpr of these values; gives what it returns."""
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
