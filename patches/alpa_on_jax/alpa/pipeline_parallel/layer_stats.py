"""Replacements in `alpa.pipeline_parallel.layer_stats`: the FLOPs of an equation, asked of stock XLA.

Takes an equation of a jaxpr and gives back what XLA's cost analysis says of it, as alpa does; layers are balanced by
these numbers. Equal equations (same primitive, parameters and shapes) are analysed once in a process: a model with
many layers has few different ones.
"""

import functools
from types import ModuleType

import jax
from jax._src import core

from alpa_on_jax.replacing import replace


def apply(module: ModuleType) -> None:
    """Replace `eqn_flops`."""

    def eqn_flops(eqn: core.JaxprEqn) -> float:
        """The floating-point operations of the products and convolutions in `eqn`."""
        if "jaxpr" in eqn.params:
            return sum(eqn_flops(inner) for inner in eqn.params["jaxpr"].eqns)
        if eqn.primitive not in module.non_trivial_primitive:
            return 0
        return _flops(_ByContent(eqn))

    replace(module, eqn_flops)


def _avals(eqn: core.JaxprEqn) -> list[core.ShapedArray]:
    return [v.aval for v in eqn.invars if isinstance(v.aval, core.ShapedArray)]


class _ByContent:
    """An equation that equals another with the same primitive, parameters and operand shapes."""

    def __init__(self, eqn: core.JaxprEqn) -> None:
        self.eqn = eqn
        operands = tuple((a.shape, a.dtype) for a in _avals(eqn))
        self._key = (eqn.primitive.name, repr(sorted(eqn.params.items(), key=lambda item: item[0])), operands)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByContent) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@functools.lru_cache(maxsize=4096)
def _flops(content: _ByContent) -> float:
    eqn = content.eqn
    operands = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in _avals(eqn)]
    lowered = jax.jit(lambda *args: eqn.primitive.bind(*args, **eqn.params)).lower(*operands)
    return float((lowered.cost_analysis() or {}).get("flops", 0.0))
