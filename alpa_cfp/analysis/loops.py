"""Joins the forward and the backward body of a differentiated loop into one graph: an iteration with its gradients.

`jax.grad` of a `lax.scan` gives two loops: the first stacks residuals, and the second takes them slice by slice. Takes
a graph; gives its loops, each alone or with its backward loop. In the joint graph these slices are replaced by the
values of the forward body, so that gradients are matched with their forward contractions. Invariant: the ops of a joint
graph are those of the forward body followed by those of the backward body; slices without a use left are marked as
constant-derived, and so belong to no block.
"""

from dataclasses import dataclass, replace

from alpa_cfp.analysis.graph import Graph, Loop, Op, Value
from alpa_cfp.analysis.structure import constant_digests

_STACKS = frozenset({"stablehlo.reshape", "stablehlo.broadcast_in_dim"})


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration of a loop, with its backward pass where there is one.

    Attributes:
        loops: The `while` op in the graph around it, and then that of the backward loop, if there is one.
        graph: The body, or both bodies joined.
        trip_count: The number of iterations; None where that is not a constant.
    """

    loops: tuple[int, ...]
    graph: Graph
    trip_count: int | None


def find_iterations(graph: Graph) -> tuple[Iteration, ...]:
    """Returns the loops of `graph`, forward loops together with their backward loops, in program order."""
    links = {loop.op: _links(graph, loop) for loop in graph.loops}
    partner: dict[int, int] = {}
    for backward in graph.loops:
        candidates = {op: found for op, found in links[backward.op].items() if op not in partner}
        if candidates:
            partner[max(candidates, key=lambda op: len(candidates[op]))] = backward.op
    digests = constant_digests(graph)
    bodies = {loop.op: replace(loop.body, constants=_constants(graph, loop, digests)) for loop in graph.loops}
    joined = set(partner.values())
    result: list[Iteration] = []
    for loop in graph.loops:
        if loop.op in joined:
            continue
        backward_op = partner.get(loop.op)
        if backward_op is None:
            result.append(Iteration((loop.op,), bodies[loop.op], loop.trip_count))
        else:
            body = _join(bodies[loop.op], bodies[backward_op], links[backward_op][loop.op])
            result.append(Iteration((loop.op, backward_op), body, loop.trip_count))
    return tuple(result)


def _constants(graph: Graph, loop: Loop, digests: dict[int, int]) -> tuple[tuple[int, int], ...]:
    """The parameters of a loop's body that are constants of the graph around it."""
    pairs = zip(loop.body.parameters, graph.ops[loop.op].operands, strict=True)
    return tuple(
        (parameter, digests[operand])
        for parameter, operand in pairs
        if operand in digests and _is_invariant_parameter(loop.body, parameter)
    )


def _links(graph: Graph, backward: Loop) -> dict[int, dict[int, int]]:
    """For each earlier loop whose stacked values `backward` takes, the equal values of both bodies.

    The keys are ids in `backward`'s body, the values ids in the other loop's body.
    """
    result: dict[int, dict[int, int]] = {}
    operands = graph.ops[backward.op].operands
    for loop in graph.loops:
        if loop.op >= backward.op or loop.trip_count != backward.trip_count:
            continue
        of_loop = {value: i for i, value in enumerate(graph.ops[loop.op].results)}
        passed = {value: i for i, value in enumerate(graph.ops[loop.op].operands)}
        saved: dict[int, int] = {}
        shared: dict[int, int] = {}
        for parameter, operand in zip(backward.body.parameters, operands, strict=True):
            slices = _slices(backward.body, parameter)
            if operand in of_loop:
                value = _stacked(loop.body, of_loop[operand])
                if value is not None:
                    shape = loop.body.shape(value)
                    saved.update({each: value for each in slices if backward.body.shape(each) == shape})
                elif _is_invariant(loop.body, of_loop[operand]) and _is_invariant_parameter(backward.body, parameter):
                    shared.update(_same(loop.body, loop.body.parameters[of_loop[operand]], backward.body, parameter))
            elif operand in passed and _is_invariant_parameter(backward.body, parameter):
                shared.update(_same(loop.body, loop.body.parameters[passed[operand]], backward.body, parameter))
        if saved:
            result[loop.op] = saved | shared
    return result


def _same(forward: Graph, parameter: int, backward: Graph, its_parameter: int) -> dict[int, int]:
    """Equal values of two bodies that use the same array: the array, and its slice for the iteration."""
    slices = {forward.shape(value): value for value in reversed(_slices(forward, parameter))}
    same = {
        value: slices[shape] for value in _slices(backward, its_parameter) if (shape := backward.shape(value)) in slices
    }
    return {its_parameter: parameter} | same


def _slices(body: Graph, parameter: int) -> list[int]:
    """The slices of a stacked parameter that belong to one iteration."""
    result: list[int] = []
    for user in body.values[parameter].users:
        op = body.ops[user]
        if op.name != "stablehlo.dynamic_slice" or op.operands[0] != parameter:
            continue
        for user_of_slice in body.values[op.results[0]].users:
            if body.ops[user_of_slice].name == "stablehlo.reshape":
                result.append(body.ops[user_of_slice].results[0])
    return result


def _stacked(body: Graph, position: int) -> int | None:
    """The value that each iteration writes into the stacked result at `position`; None if the result is not stacked."""
    op = body.producer(body.results[position])
    if op is None or op.name != "stablehlo.dynamic_update_slice" or op.operands[0] != body.parameters[position]:
        return None
    layout = body.producer(op.operands[1])
    return layout.operands[0] if layout is not None and layout.name in _STACKS else None


def _is_invariant(body: Graph, position: int) -> bool:
    return body.results[position] == body.parameters[position]


def _is_invariant_parameter(body: Graph, parameter: int) -> bool:
    position = body.values[parameter].position
    # Captured values follow the carried ones, and are never changed.
    return position >= len(body.results) or _is_invariant(body, position)


def _join(forward: Graph, backward: Graph, links: dict[int, int]) -> Graph:
    """Joins both bodies into one graph, with the linked values of `backward` replaced by those of `forward`."""
    value_shift, op_shift = len(forward.values), len(forward.ops)

    def moved(value: int) -> int:
        return links[value] if value in links else value + value_shift

    ops = [*forward.ops]
    for op in backward.ops:
        operands = tuple(moved(v) for v in op.operands)
        results = tuple(v + value_shift for v in op.results)
        ops.append(Op(op.index + op_shift, op.name, operands, results, op.attributes, op.rule))
    users: list[list[int]] = [[] for _ in range(value_shift + len(backward.values))]
    for op in ops:
        for operand in dict.fromkeys(op.operands):
            users[operand].append(op.index)
    values = [replace(value, users=tuple(users[value.id])) for value in forward.values]
    for value in backward.values:
        number = value.id + value_shift
        op = None if value.op is None else value.op + op_shift
        position = value.position + len(forward.parameters) * (op is None)
        values.append(Value(number, value.shape, value.dtype, op, position, tuple(users[number])))
    constant_derived = [*forward.constant_derived, *backward.constant_derived]
    results = (*forward.results, *(moved(v) for v in backward.results))
    _drop_unused_slices(ops, values, frozenset(results), links, value_shift, constant_derived)
    # Parameters come first by id in other graphs; here those of the backward body follow the forward body's results.
    return Graph(
        ops=tuple(ops),
        values=tuple(values),
        parameters=(*forward.parameters, *(v + value_shift for v in backward.parameters)),
        results=results,
        constant_derived=tuple(constant_derived),
        constants=(*forward.constants, *((v + value_shift, digest) for v, digest in backward.constants)),
        without_rule=tuple(op.index for op in ops if op.rule is None and not constant_derived[op.index]),
        loops=(*forward.loops, *(replace(loop, op=loop.op + op_shift) for loop in backward.loops)),
    )


def _drop_unused_slices(
    ops: list[Op],
    values: list[Value],
    results: frozenset[int],
    links: dict[int, int],
    shift: int,
    constant_derived: list[bool],
) -> None:
    """Marks ops as constant-derived if they only made slices that the joint graph takes from the forward body."""
    worklist = [op for value in links if (op := values[value + shift].op) is not None]
    while worklist:
        op = ops[worklist.pop()]
        if constant_derived[op.index] or any(
            r in results or any(not constant_derived[u] for u in values[r].users) for r in op.results
        ):
            continue
        constant_derived[op.index] = True
        worklist += [producer for operand in op.operands if (producer := values[operand].op) is not None]
