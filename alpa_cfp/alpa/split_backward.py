"""Split a backward stage of a pipeline in two: what earlier stages wait for, and gradients of parameters.

Takes a stage as alpa makes it, between pipeline markers; gives two that compute the same. The first has the equations
that its cotangents need; the second has the rest, and takes from the first what that computed already. Invariant: no
equation is in both. What one equation computes stays together: a checkpointed layer and a loop are whole in the first,
unless nobody waits for them, and what of their gradients remains to be added up is there, too.

Tested with alpa 0.2.3: `mark_pipeline_jaxpreqn`, and what `merge_marked_jaxprs_with_named_call` makes.
"""

from collections.abc import Collection, Sequence
from typing import Any

from alpa.pipeline_parallel.computation import JaxPipelineComputation
from alpa.pipeline_parallel.primitive_def import mark_pipeline_jaxpreqn
from jax._src import core

from alpa_on_jax.alpa.pipeline_parallel.late_inlining import inlined

# Of the name of the stage with gradients of parameters.
SUFFIX = "_gradients"
# What adds up gradients.
_ADDING = frozenset(("add", "add_any", "convert_element_type"))


def split_backward(stage: Any, accumulated: Collection[Any]) -> tuple[Any, Any]:
    """Returns both parts of a backward stage.

    Args:
        stage: The stage, a `JaxPipelineComputation`.
        accumulated: The variables of accumulated gradients, among its results.
    """
    flat = inlined(stage.closed_jaxpr(), _called).jaxpr
    start, *body, end = flat.eqns
    outer = dict(zip(start.outvars, start.invars, strict=True))
    results = list(zip(end.outvars, end.invars, strict=True))
    waited_for = _needed(body, [atom for var, atom in results if var not in accumulated])
    late = _late(body, waited_for)

    def is_late(var: Any, atom: Any) -> bool:
        return var in accumulated and not late.isdisjoint(_variables([atom]))

    first_results = [pair for pair in results if not is_late(*pair)]
    last_results = [pair for pair in results if is_late(*pair)]
    needed = _needed(body, [atom for _, atom in first_results])
    rest = _needed(body, [atom for _, atom in last_results]) - needed
    first, last = ([eqn for number, eqn in enumerate(body) if number in part] for part in (needed, rest))
    computed = {var for eqn in first for var in eqn.outvars}
    new = core.gensym()
    used = _variables([*(atom for eqn in last for atom in eqn.invars), *(atom for _, atom in last_results)])
    crossing = {var: new(var.aval) for var in used if var in computed}
    constants = stage.consts_dir
    return (
        _stage(stage.name, first, [*first_results, *((out, var) for var, out in crossing.items())], outer, constants),
        _stage(stage.name + SUFFIX, last, last_results, outer | crossing, constants),
    )


def _called(eqn: core.JaxprEqn) -> core.Jaxpr | None:
    """What an equation calls, if that can as well be where it is: alpa's layers, and functions under `jax.jit`."""
    if eqn.primitive.name == "named_call":
        return eqn.params["call_jaxpr"]
    if eqn.primitive.name in ("jit", "pjit") and not eqn.params["jaxpr"].consts:
        return eqn.params["jaxpr"].jaxpr
    return None


def _needed(eqns: Sequence[core.JaxprEqn], results: Sequence[Any]) -> set[int]:
    """The numbers of the equations of which some results are made."""
    wanted, needed = set(_variables(results)), set[int]()
    for number, eqn in reversed(list(enumerate(eqns))):
        if wanted.intersection(eqn.outvars) or eqn.effects:
            needed.add(number)
            wanted.update(_variables(eqn.invars))
    return needed


def _late(eqns: Sequence[core.JaxprEqn], waited_for: set[int]) -> set[core.Var]:
    """The variables that can be computed later than what others wait for, so that less is kept until then.

    A gradient that is there already, and has to be added up only, is none of them.
    """
    late = set[core.Var]()
    for number, eqn in enumerate(eqns):
        is_sum = eqn.primitive.name in _ADDING and late.isdisjoint(_variables(eqn.invars))
        if number not in waited_for and not is_sum:
            late.update(eqn.outvars)
    return late


def _variables(atoms: Sequence[Any]) -> dict[core.Var, None]:
    """The variables among atoms, each once, in their order."""
    return dict.fromkeys(atom for atom in atoms if isinstance(atom, core.Var))


def _stage(
    name: str,
    eqns: Sequence[core.JaxprEqn],
    results: Sequence[tuple[Any, Any]],
    outer: dict[core.Var, Any],
    constants: dict[Any, Any],
) -> Any:
    """A stage between markers.

    Args:
        name: Its name.
        eqns: Its equations.
        results: Its results outside, and inside.
        outer: What variables inside, which it does not compute, are outside.
        constants: Constants of the whole stage.
    """
    used = _variables([*(atom for eqn in eqns for atom in eqn.invars), *(atom for _, atom in results)])
    new = core.gensym()
    inputs = {var: new(var.aval) for var in used if var in outer}

    def read(atom: Any) -> Any:
        return inputs.get(atom, atom) if isinstance(atom, core.Var) else atom

    taken = [outer[var] for var in inputs]
    given = [out for out, _ in results]
    body = [eqn.replace(invars=[read(atom) for atom in eqn.invars]) for eqn in eqns]
    marked = [
        mark_pipeline_jaxpreqn(taken, list(inputs.values()), name, "start"),
        *body,
        mark_pipeline_jaxpreqn([read(atom) for _, atom in results], given, name, "end"),
    ]
    own = {var: value for var, value in constants.items() if var in used}
    return JaxPipelineComputation(name=name, invars=taken, outvars=given, eqns=marked, consts_dir=own)
