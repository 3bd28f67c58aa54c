"""How often the loops of a scheduled program do their bodies.

Takes a program and a `while` of it; gives the number, if the text tells it. Invariant: a number that is given is that
of any run.
"""

from alpa_cfp.targets.errors import HloTextError
from alpa_cfp.targets.hlo_text import Computation, Instruction, ScheduledModule


def trip_count(module: ScheduledModule, computation: Computation, loop: Instruction) -> int | None:
    """How often a `while` of `computation` does its body; None where the text does not tell.

    XLA:GPU says it. Of TPUs' loops it is worked out, if a counter starts at a constant, the body adds a constant to it,
    and the condition compares it with a constant, as `jax.lax.scan` makes loops.

    Raises:
        HloTextError: it has no condition or no body.
    """
    known = loop.backend_config().get("known_trip_count")
    if known is not None:
        return int(known["n"])
    names = loop.called("condition") + loop.called("body")
    if len(names) != 2:
        raise HloTextError.at(loop.line, loop.name, "the loop does not have a condition and a body")
    condition, body = (module.computations[name] for name in names)
    test = condition.by_name[condition.root]
    init = computation.by_name[loop.operands[0]]
    after = body.by_name[body.root]
    if test.opcode != "compare" or "tuple" not in (init.opcode, after.opcode) or init.opcode != after.opcode:
        return None
    index = _element(condition, test.operands[0])
    if index is None:
        return None
    limit = _constant(condition, test.operands[1])
    passed = _element(condition, test.operands[1])
    if limit is None and passed is not None and _element(body, after.operands[passed]) == passed:
        limit = _constant(computation, init.operands[passed])
    start, step = _constant(computation, init.operands[index]), _step(body, after.operands[index], index)
    if limit is None or start is None or not step:
        return None
    direction = test.attributes.get("direction", "")
    beyond = {"LT": limit, "LE": limit + 1, "GT": limit, "GE": limit - 1, "NE": limit}.get(direction)
    return None if beyond is None else max(0, -((start - beyond) // step))


def _element(computation: Computation, name: str) -> int | None:
    """Which element of the computation's one parameter an instruction is, through copies of it."""
    found = _source(computation, name)
    if found.opcode != "get-tuple-element" or computation.by_name[found.operands[0]].opcode != "parameter":
        return None
    return found.numbers("index")[0]


def _constant(computation: Computation, name: str) -> int | None:
    found = _source(computation, name)
    try:
        return int(found.literal) if found.opcode == "constant" else None
    except ValueError:
        return None


def _step(body: Computation, name: str, index: int) -> int | None:
    """What an iteration adds to the counter that is element `index`."""
    found = _source(body, name)
    if found.opcode not in ("add", "subtract") or len(found.operands) != 2:
        return None
    left, right = found.operands
    if _element(body, left) == index:
        step = _constant(body, right)
    elif _element(body, right) == index and found.opcode == "add":
        step = _constant(body, left)
    else:
        return None
    return -step if step is not None and found.opcode == "subtract" else step


def _source(computation: Computation, name: str) -> Instruction:
    found = computation.by_name[name]
    while found.opcode in ("copy", "bitcast", "convert", "reshape"):
        found = computation.by_name[found.operands[0]]
    return found
