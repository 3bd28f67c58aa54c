"""Names that left `jax.interpreters.partial_eval`."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax._src import core
from jax._src.interpreters.partial_eval import trace_to_jaxpr_dynamic
from jax._src.linear_util import WrappedFun, transformation2

from alpa_on_jax import errors

__all__ = ["remat_call_p", "trace_to_jaxpr_final"]

# The old jax.remat; JAX 0.3.22 did not make it any more either (jax.checkpoint is `remat_p`), so no jaxpr holds it.
remat_call_p = core.Primitive("remat_call")


def trace_to_jaxpr_final(
    fun: WrappedFun, in_avals: Sequence[core.AbstractValue]
) -> tuple[core.Jaxpr, list[core.AbstractValue], list[Any]]:
    """Trace `fun` at `in_avals`: the jaxpr, the abstract values of its results, and the constants it closes over.

    Raises:
        errors.NotJittableError: `fun` needs the value of an array to go on, or gives back something else than arrays.
    """
    name = fun.debug_info.func_src_info
    try:
        return trace_to_jaxpr_dynamic(_with_checked_results(fun, name), tuple(in_avals))
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        raise errors.NotJittableError(name, str(error)) from error


@transformation2
def _with_checked_results(fun: Callable[..., Sequence[Any]], name: str, *args: Any) -> Sequence[Any]:
    # JAX's own check takes the path of the result from what only its own transformations record, and fails without it.
    results = fun(*args)
    for result in results:
        try:
            core.typeof(result)
        except TypeError as error:
            kind = type(result).__name__
            raise errors.NotJittableError(name, f"a result is {result!r} of type {kind}, which is no array") from error
    return results
