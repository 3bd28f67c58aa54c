"""Make sums over devices once behind a loop, where its iterations only add up what is summed.

The backward loop of a recurrence adds a gradient to a carried array in each iteration, and that of a scan over layers
writes one into a carried stack. Where the samples are split, each of these gradients is a sum over devices. Takes the
global program with Shardy's collectives; marks the all-reduces inside a loop after which all is linear up to what it
carries on, and puts one behind the loop for each carried array that is partial then. Invariant: the loop's results
behind these all-reduces are those of the program as it was, up to rounding; a carried array that is partial is so in
each iteration, and its first value counts once over the devices (`axes_summed_behind`).
"""

from collections.abc import Sequence
from typing import Any

from jaxlib.mlir import ir

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation
from alpa_cfp.spmd.partition.partial_flow import WHOLE, PartialFlow, PartialSum, leave_out, sums_of
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.loop_dims import WHILE
from alpa_cfp.spmd.shardings.sharding import Axis, LogicalMesh, parse_axes

# On a loop: for each result the axes over which it is to be summed.
_SUMMED_BEHIND = "alpa.summed_behind"


def sum_after_loops(block: Any, mesh: LogicalMesh) -> None:
    """Move sums out of the loops of `block`, in place, from the innermost loops outwards."""
    for loop in mlir.block_operations(block):
        if loop.name == WHILE:
            _, body = (region.blocks[0] for region in loop.regions)
            sum_after_loops(body, mesh)
            flow = leave_out(sums_of(body), lambda left_out, loop=loop: _Iteration(loop, mesh, left_out).flow())
            if flow is not None:
                carried = mlir.block_operations(body)[-1].operands
                _sum_behind(loop, mesh, [tuple(sorted(flow.of(value).axes)) for value in carried])


def axes_summed_behind(loop: Operation, mesh: LogicalMesh) -> list[tuple[Axis, ...]]:
    """For each result of a loop the axes over which the devices' parts are still to be summed: of its first value, as
    of what the iterations add to it."""
    if _SUMMED_BEHIND not in loop.attributes:
        return [()] * len(loop.results)
    return [parse_axes(mesh, str(axes)) for axes in ir.ArrayAttr(loop.attributes[_SUMMED_BEHIND])]


class _Iteration:
    """What is partial in an iteration of a loop if given all-reduces are left out."""

    def __init__(self, loop: Operation, mesh: LogicalMesh, left_out: set[Operation]):
        condition, body = (region.blocks[0] for region in loop.regions)
        self._tested = list(condition.arguments)
        self._arguments = list(body.arguments)
        *self._operations, end = mlir.block_operations(body)
        self._carried = list(end.operands)
        self._mesh = mesh
        self._left_out = left_out

    def flow(self) -> PartialFlow:
        """The flow through the body, with all that is rejected there, by the condition, or between two iterations."""
        before = self._what_may_be_partial()
        flow = self._follow(before, is_lenient=False)
        for argument, value, tested in zip(self._arguments, self._carried, self._tested, strict=True):
            if flow.of(value).axes != before.get(argument, WHOLE).axes:
                flow.reject([argument, value])
            if mlir.users(tested):
                flow.reject([value])
        return flow

    def _what_may_be_partial(self) -> dict[Any, PartialSum]:
        """The carried arrays, as the body takes them, that would be partial if all that it does with them were linear
        where it can be.

        What was found once stays, so that there is an end: an array that is multiplied with a sum in each iteration
        would be partial after the first one, and not after the second.
        """
        known: dict[Any, PartialSum] = {}
        while True:
            flow = self._follow(known, is_lenient=True)
            found = {
                argument: known.get(argument, WHOLE) | flow.of(value)
                for argument, value in zip(self._arguments, self._carried, strict=True)
                if argument in known or flow.of(value) != WHOLE
            }
            if found == known:
                return known
            known = found

    def _follow(self, before: dict[Any, PartialSum], *, is_lenient: bool) -> PartialFlow:
        flow = PartialFlow(self._mesh, self._left_out, is_lenient=is_lenient, known=dict(before))
        return flow.follow(self._operations)


def _sum_behind(loop: Operation, mesh: LogicalMesh, summed: Sequence[tuple[Axis, ...]]) -> None:
    shardings = annotations.result_shardings(loop, mesh)
    texts = [annotations.axis_list(mesh, axes) for axes in summed]
    loop.attributes[_SUMMED_BEHIND] = ir.ArrayAttr.get(texts)
    for result, sharding, axes, text in zip(loop.results, shardings, summed, texts, strict=True):
        if axes:
            with ir.InsertionPoint.after(loop), loop.location:
                attributes = {"reduction_axes": text, "out_sharding": mlir.attribute(sharding.to_sdy())}
                total = mlir.create("sdy.all_reduce", [result.type], [result], attributes)
            result.replace_all_uses_except(total.results[0], total)
