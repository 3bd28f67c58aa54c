"""The optimizer updates of a program: state arrays with the elementwise ops that compute their new values.

Takes a `Graph` and the pairs of results and parameters that are one state array; gives `Update`s: an optimizer's update
of a weight and its moments, for example, but not of a batch norm's averages, which the forward pass computes. Such ops
can be split evenly over devices however the gradients are sharded, as ZeRO does. Invariants: every op is in one update
at most; all arrays of an update have one shape.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from alpa_cfp.analysis.graph import BARRIER, CONSTRAINT, Graph, Op
from alpa_cfp.analysis.rules import FactorKind


@dataclass(frozen=True, slots=True)
class Update:
    """The update of some arrays of one shape.

    Attributes:
        weights: Numbers of its parameters that other ops use too; at least one.
        moments: Numbers of its parameters that only the update uses: the optimizer's own state.
        ops: The elementwise ops of the arrays' shape that compute the new values, ascending.
    """

    weights: tuple[int, ...]
    moments: tuple[int, ...]
    ops: tuple[int, ...]


def find_updates(graph: Graph, pairs: Sequence[tuple[int, int]]) -> tuple[Update, ...]:
    """Returns the updates in `graph`.

    Args:
        graph: The graph.
        pairs: (result, parameter) for each array of the state.
    """
    ops = _update_ops(graph, {result for result, _ in pairs})
    group_of: dict[int, int] = {}  # a union-find over ops and, as -1 - number, parameters
    for op in ops:
        group_of.setdefault(op, op)
        for value in graph.ops[op].operands:
            origin = graph.origin(value)
            producer = graph.values[origin].op
            member = -1 - graph.values[origin].position if producer is None else producer
            if (producer is None or producer in ops) and graph.shape(origin) == _shape(graph, op):
                _join(group_of, op, member)
    for result, parameter in pairs:
        producer = graph.values[graph.origin(graph.results[result])].op
        if producer in ops and graph.shape(graph.parameters[parameter]) == _shape(graph, producer):
            _join(group_of, producer, -1 - parameter)
    state = {parameter for _, parameter in pairs}
    groups: dict[int, list[int]] = {}
    for member in group_of:
        groups.setdefault(_root(group_of, member), []).append(member)
    updates = []
    for members in groups.values():
        arrays = sorted(-1 - member for member in members if member < 0 and -1 - member in state)
        weights = tuple(number for number in arrays if graph.users_through_barriers(graph.parameters[number]) - ops)
        moments = tuple(number for number in arrays if number not in weights)
        if weights:
            updates.append(Update(weights, moments, tuple(sorted(member for member in members if member >= 0))))
    return tuple(sorted(updates, key=lambda update: update.ops))


def _update_ops(graph: Graph, state_results: set[int]) -> set[int]:
    """The elementwise ops from which nothing but the results numbered `state_results` is computed."""
    returned: dict[int, list[int]] = {}
    for position, value in enumerate(graph.results):
        returned.setdefault(value, []).append(position)
    found: set[int] = set()

    def leads_to_state(value: int) -> bool:
        if not state_results.issuperset(returned.get(value, ())):
            return False
        return all(
            user in found or _only_returns(graph, user, value, returned, state_results)
            for user in graph.values[value].users
        )

    for op in reversed(graph.ops):
        used = any(value in returned or graph.values[value].users for value in op.results)
        if (
            not graph.constant_derived[op.index]
            and used
            and _is_elementwise(graph, op)
            and all(map(leads_to_state, op.results))
        ):
            found.add(op.index)
    return found


def _only_returns(graph: Graph, user: int, value: int, returned: dict[int, list[int]], state_results: set[int]) -> bool:
    """Whether `user` is a barrier, such as one of alpa's marks, behind which `value` is only in `state_results`."""
    op = graph.ops[user]
    if op.name != BARRIER:
        return False
    results = [result for operand, result in zip(op.operands, op.results, strict=True) if operand == value]
    return all(
        not graph.values[result].users and result in returned and state_results.issuperset(returned[result])
        for result in results
    )


def _is_elementwise(graph: Graph, op: Op) -> bool:
    # The program says where a constraint's array lies: its update is not split further.
    if op.rule is None or op.name in (BARRIER, CONSTRAINT) or len(op.results) != 1:
        return False
    if not graph.shape(op.results[0]) or any(kind is not FactorKind.PLAIN for kind in op.rule.kinds):
        return False
    result = op.rule.results[0]
    same = [
        dims == result
        for value, dims in zip(op.operands, op.rule.operands, strict=True)
        if graph.shape(value) == graph.shape(op.results[0])
    ]
    others = [value for value in op.operands if graph.shape(value) != graph.shape(op.results[0])]
    return all(same) and all(graph.shape(value) == () for value in others)


def _shape(graph: Graph, op: int) -> tuple[int, ...]:
    return graph.shape(graph.ops[op].results[0])


def _root(group_of: dict[int, int], member: int) -> int:
    while group_of[member] != member:
        group_of[member] = member = group_of[group_of[member]]
    return member


def _join(group_of: dict[int, int], first: int, second: int) -> None:
    group_of.setdefault(first, first)
    group_of.setdefault(second, second)
    group_of[_root(group_of, second)] = _root(group_of, first)
