"""Replacement in `alpa.shard_parallel.compile_executable`: gradient accumulation, with a check before it.

Alpa cuts a step with micro-batches in two at the mark of `alpa.grad`: what comes before is done once a micro-batch,
what comes after once a step. Invariant: only what passes through that mark goes from the one to the other, because
everything else has another value for every micro-batch.
"""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from jax._src import core, source_info_util

from alpa_on_jax import errors
from alpa_on_jax.alpa.shard_parallel.combined_values import combine
from alpa_on_jax.alpa.tracing import values_of_micro_batches
from alpa_on_jax.replacing import replace

_MAX_NAMED = 3


def apply(module: ModuleType) -> None:
    """Check what `add_gradient_accumulation` is given."""
    original = module.add_gradient_accumulation

    def add_gradient_accumulation(raw_jaxpr: Any, num_micro_batches: int) -> Any:
        """As alpa's own; values that are no means are combined otherwise than by averaging.

        Raises:
            errors.GradientMarkerError: the function has not one gradient mark, or uses a value across it.
            errors.MicroBatchError: a value can be neither averaged nor combined in another way that is known.
        """
        check_gradient_marker(raw_jaxpr.jaxpr)
        mark = next(eqn for eqn in raw_jaxpr.jaxpr.eqns if eqn.params.get("mark_type") == "grad")
        combined = values_of_micro_batches(raw_jaxpr, mark.invars)
        closed, *rest = original(raw_jaxpr, num_micro_batches)
        return (combine(closed, combined, num_micro_batches), *rest)

    replace(module, add_gradient_accumulation)


def check_gradient_marker(jaxpr: core.Jaxpr) -> None:
    """Hold that `jaxpr` has one gradient mark, and that no value crosses it otherwise.

    Raises:
        errors.GradientMarkerError: it has not, or one does.
    """
    from alpa.pipeline_parallel.primitive_def import pipeline_p

    marks = [
        position
        for position, eqn in enumerate(jaxpr.eqns)
        if eqn.primitive is pipeline_p and eqn.params["mark_type"] == "grad"
    ]
    if not marks:
        raise errors.GradientMarkerError.missing()
    if len(marks) > 1:
        raise errors.GradientMarkerError.several(len(marks))
    before, after = jaxpr.eqns[: marks[0]], jaxpr.eqns[marks[0] + 1 :]
    made_by = {var: eqn for eqn in before for var in eqn.outvars}
    used = [var for eqn in after for var in eqn.invars] + list(jaxpr.outvars)
    crossing = dict.fromkeys(var for var in used if not isinstance(var, core.Literal) and var in made_by)
    if crossing:
        raise errors.GradientMarkerError.crossed(_descriptions(list(crossing), made_by))


def _descriptions(variables: Sequence[core.Var], made_by: dict[core.Var, core.JaxprEqn]) -> list[str]:
    named = [
        f"{var.aval.str_short()} of {made_by[var].primitive.name} at "
        f"{source_info_util.summarize(made_by[var].source_info)}"
        for var in variables[:_MAX_NAMED]
    ]
    return named if len(variables) <= _MAX_NAMED else [*named, f"and {len(variables) - _MAX_NAMED} more"]
