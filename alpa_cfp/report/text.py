"""Explains a plan as text: the strategy of each block, the alternatives, and their costs.

Invariant: equal blocks of equal layers are described once, so the text grows with the kinds of blocks and not with the
depth of the model. A plan without a report is explained from its strategies alone.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from alpa_cfp import quantities
from alpa_cfp.plan.plan import Plan
from alpa_cfp.plan.plan_report import Alternative, TriedPlan
from alpa_cfp.report import words
from alpa_cfp.report.folding import FoldedBlock, FoldedPlan, FoldedSegment, fold
from alpa_cfp.report.totals import blocks_s, memories, moves_s, parts_s, times
from alpa_cfp.strategies.block_strategy import StateSharding

# Numbers of alternatives of a block, and of contributions to a step, in a short text.
_ALTERNATIVES, _CONTRIBUTIONS = 3, 8
# A larger relative difference of a prediction from the sum of its parts is mentioned.
_NOTEWORTHY = 0.01


def explain(plan: Plan, *, blocks: Collection[int] | None = None, everything: bool = False) -> str:
    """Explains a plan.

    Args:
        plan: The plan.
        blocks: Indices of the blocks to explain; None for the whole plan.
        everything: Whether to list all alternatives and contributions, and not only the largest.
    """
    if plan.account is None:
        return "\n".join([*heading(plan), "", *_from_strategies(plan)]) + "\n"
    text = _Text(plan, plan.account, fold(plan.account), everything)
    if blocks is not None:
        return "\n".join(text.blocks_section(blocks)).strip("\n") + "\n"
    sections = (
        heading(plan),
        text.tried_section(),
        text.blocks_section(),
        text.time_section(),
        text.memory_section(),
        text.without_rule_section(),
        text.caveats_section(),
    )
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def heading(plan: Plan) -> list[str]:
    """The plan as a whole."""
    report = plan.account
    timeline = report.timeline if report else None
    blocks = quantities.plural(len(plan.strategies), "block")
    of_kinds = f" of {quantities.plural(len(report.kinds), 'kind')}" if report else ""
    named = f": {words.axes_of_mesh(plan.mesh_shape, report.axis_names)}" if report else ""
    return [
        f"Plan for {quantities.a_mesh(plan.mesh_shape)}{named}. {blocks}{of_kinds}.",
        f"  step    {step(plan)}",
        *([f"  queues  {words.overlap(timeline)}; modelled"] if timeline else []),
        f"  memory  {needed(plan)}",
        *([f"  again   {words.recomputed(plan)}"] if words.recomputed(plan) else []),
        *([f"  parts   {words.in_parts(plan)}"] if words.in_parts(plan) else []),
        f"  costs   {costs(plan)}",
        *([f"  search  {searched(plan)}"] if searched(plan) else []),
    ]


def step(plan: Plan) -> str:
    """The time of a step: "45.2 ms measured, 43.1 ms predicted (4.6% too low)"."""
    predicted = f"{quantities.time(plan.predicted_s)} predicted"
    if plan.measured_s is None:
        return f"{predicted}; the whole program was not run"
    time = f"{quantities.time(plan.measured_s)} {words.found(plan)}"
    return f"{time}, {predicted} ({words.off(plan.predicted_s, plan.measured_s)})"


def needed(plan: Plan) -> str:
    """The memory of a device."""
    memory = plan.memory
    predicted = f"{words.memory(memory.state, memory.saved, memory.transient)}"
    if plan.needed_bytes is None:
        return f"{predicted} predicted for a device"
    return f"{quantities.size(plan.needed_bytes)} on a device by the compiled program; predicted {predicted}"


def costs(plan: Plan) -> str:
    """The source of the times."""
    origin = {
        "measure": "measured on the mesh",
        "compile": "modelled, from programs that were compiled for the target; nothing was run",
        "replay": "measured on such a mesh before",
        "estimate": "estimated, nothing was measured",
    }
    source = origin.get(plan.costs, plan.costs)
    count = plan.account.programs_measured if plan.account else 0
    return f"{source}; {quantities.plural(count, 'program')} profiled or looked up" if count else source


def searched(plan: Plan) -> str:
    """The bound of a search: "not exact: another plan could be predicted to be at most 1.2 ms (3%) faster".

    Empty if the search was exact.
    """
    if plan.account is None or plan.account.gap_s == 0:
        return ""
    gap_s = plan.account.gap_s
    if gap_s is None:
        return "not exact; nothing was proved of how much faster another plan could be"
    part = words.share(gap_s, plan.predicted_s)
    return f"not exact: another plan could be predicted to be at most {quantities.time(gap_s)} ({part}) faster"


def _from_strategies(plan: Plan) -> Iterator[str]:
    """Explains a plan without a report."""
    kept = {
        StateSharding.REPLICATED: "",
        StateSharding.ZERO2: ", optimizer state sharded",
        StateSharding.ZERO3: ", weights and optimizer state sharded",
    }
    names = [f"axis {index}" for index in range(len(plan.mesh_shape))]
    counts: Counter[str] = Counter()
    for each in plan.strategies:
        split = [axis for axis, factor in enumerate(each.factors) if factor is not None]
        counts[
            (f"split on {words.axes(split, names)}" if split else "replicated on every device")
            + kept[each.state_sharding]
        ] += 1
    yield "Blocks"
    for text, count in counts.most_common():
        yield f"  {quantities.plural(count, 'block')}: {text}"
    yield ""
    yield "This plan has no report, so the names, times and alternatives of its blocks are not known."
    yield "Plan the program again and save the new plan to see them."


@dataclass(frozen=True, slots=True)
class _Text(FoldedPlan):
    """A plan with a report as text, section by section.

    Attributes:
        everything: Whether to list all alternatives and contributions.
    """

    everything: bool

    def tried_section(self) -> list[str]:
        """The whole plans that were timed."""
        if not self.report.tried:
            return ["Timed end to end", "  No plan was compiled and timed end to end; this one is the best predicted."]
        head = ("", "plan", words.found(self.plan), "predicted", "memory", "collectives", "")
        rows = [head, *map(_tried_row, self.report.tried)]
        title = "Compiled whole" if words.is_modelled(self.plan) else "Timed end to end"
        return [f"{title} (* is this plan)", *quantities.aligned(rows, "<<>>>><", indent=2)]

    def blocks_section(self, only: Collection[int] | None = None) -> list[str]:
        """The blocks, or those with the indices `only`."""
        lines = [
            "Blocks, in the order of the program. Times are of a block by itself. An alternative that is faster by",
            "itself can still lose: it may need moves between blocks, or memory, that cost more.",
        ]
        for segment in self.segments:
            blocks = [each for each in segment.blocks if only is None or any(index in only for index in each.indices)]
            if not blocks:
                continue
            titled = len(segment.blocks) > 1
            if titled:
                lines += ["", f"{_counted(segment.title, segment.count)}: {self._time_of(segment)}"]
            for block in blocks:
                lines += ["", *self._block(block, titled)]
        return lines

    def _time_of(self, of: FoldedSegment | FoldedBlock) -> str:
        blocks = of.blocks if isinstance(of, FoldedSegment) else (of,)
        known = [time_s for block in blocks if (time_s := self.chosen(block.first).time_s) is not None]
        if not known:
            return "time unknown"
        one, all_s = sum(known), of.count * sum(known)
        part = words.share(all_s, parts_s(self.report))
        if of.count == 1:
            return f"{quantities.time(one)} ({part})"
        return f"{quantities.time(one)} each, {quantities.time(all_s)} together ({part})"

    def _block(self, folded: FoldedBlock, titled: bool) -> Iterator[str]:
        """A block, indented below its segment if that has a title."""
        block, kind, own = self.report.blocks[folded.first], self.kind(folded), self.chosen(folded.first)
        indent = "  " if titled else ""
        name = folded.name if titled else _counted(folded.name, folded.count)
        yield f"{indent}{name}: {self._time_of(folded)}"
        inner = indent + "  "
        source = "" if own.time_s is None else f"; time {own.source}"
        yield f"{inner}{kind.contraction}, {quantities.plural(kind.ops, 'op')}{source}"
        yield f"{inner}{self.strategy(own)}"
        yield f"{inner}{words.communications(own, self.report.axis_names)}"
        each = " each" if folded.count > 1 else ""
        yield f"{inner}memory{each} {words.memory(block.state_bytes, block.saved_bytes, block.transient_bytes)}"
        if self.everything and block.weights:
            yield f"{inner}weights {', '.join(block.weights)}"
        others = words.ordered(kind, block.chosen)
        timed = [other for other in others if other.time_s is not None]
        shown = others if self.everything else timed[:_ALTERNATIVES]
        rows = [
            (
                "or" if index else "instead",
                "" if other.time_s is None else quantities.time(other.time_s),
                "cannot be run" if other.failure else words.verdict(other, own),
                quantities.size(words.held(other)),
                self.strategy(other) + (f" ({words.failure(other.failure)})" if other.failure else ""),
            )
            for index, other in enumerate(shown)
        ]
        yield from quantities.aligned(rows, "<>>><", indent=len(inner))
        if len(others) > len(shown):
            yield f"{inner}{_left_out(others[len(shown) :], bool(shown))}"

    def time_section(self) -> list[str]:
        """The contributions to the time of a step."""
        report, total = self.report, parts_s(self.report)
        shares = [(each.time_s, _counted(each.name, each.count)) for each in times(self)]
        lines = [
            f"Where the time goes: blocks {quantities.time(blocks_s(report))}, moves between them "
            f"{quantities.time(moves_s(report))}, starting the program {quantities.time(report.overhead_s)}",
            *self._shares(shares, total, quantities.time),
        ]
        beside = self.plan.predicted_s - total
        if total > 0 and abs(beside) > _NOTEWORTHY * self.plan.predicted_s:
            more = "more" if beside > 0 else "less"
            lines.append(
                f"  The whole program is predicted to take {quantities.time(abs(beside))} {more} than its parts."
            )
        return lines

    def memory_section(self) -> list[str]:
        """The contributions to the memory of a device."""
        found = memories(self)
        total = sum(each.lasting_bytes for each in found)
        shares = [
            (
                each.lasting_bytes,
                f"{_counted(each.block.full_name, each.block.count)} (state {quantities.size(each.state_bytes)}, "
                f"for the backward pass {quantities.size(each.saved_bytes)})",
            )
            for each in found
            if each.lasting_bytes
        ]
        lines = [
            f"Where the memory of a device goes: {quantities.size(total)} of state and for the backward pass",
            *self._shares(shares, total, quantities.size),
        ]
        peak = max(found, key=lambda each: each.transient_bytes, default=None)
        if peak is not None and peak.transient_bytes:
            lines.append(
                f"  Peak transient memory: {quantities.size(peak.transient_bytes)}, in {peak.block.full_name}."
            )
        return lines

    def _shares(self, shares: Sequence[tuple[float, str]], total: float, amount: Callable[[float], str]) -> list[str]:
        """The largest contributions, each with its name, and the sum of the others."""
        shown = list(shares if self.everything else shares[:_CONTRIBUTIONS])
        rest = sum(part for part, _ in shares[len(shown) :])
        if rest:
            shown.append((rest, "all else"))
        rows = [(amount(part), words.share(part, total), name) for part, name in shown]
        return quantities.aligned(rows, ">><", indent=2)

    def without_rule_section(self) -> list[str]:
        """The ops that have no sharding rule."""
        found = [
            f"  {', '.join(ops)} in {_counted(block.full_name, block.count)}"
            for block in self.blocks
            if (ops := self.kind(block).without_rule)
        ]
        if not found:
            return ["Every op has a sharding rule."]
        return ["Ops without a sharding rule, which every device computes whole:", *found]

    def caveats_section(self) -> list[str]:
        """The fallbacks and omissions of the planner."""
        if not self.report.caveats:
            return []
        return [
            "What the planner had to do without (! where the plan may be worse for it)",
            *(f"  {'! ' if each.may_cost else '- '}{each.text}" for each in self.report.caveats),
        ]


def _tried_row(each: TriedPlan) -> tuple[str, ...]:
    mark, predicted = "*" if each.chosen else "", quantities.time(each.predicted_s)
    if each.failure:
        return (mark, each.name, "failed", predicted, "", "", words.failure(each.failure))
    memory = "" if each.needed_bytes is None else quantities.size(each.needed_bytes)
    measured = "not run" if each.measured_s is None else quantities.time(each.measured_s)
    return (mark, each.name, measured, predicted, memory, words.count_of_collectives(each.collectives), "")


def _counted(name: str, count: int) -> str:
    return f"{name} x {count}" if count > 1 else name


def _left_out(others: Sequence[Alternative], more: bool) -> str:
    broken = sum(bool(other.failure) for other in others)
    able, parts = len(others) - broken, []
    if able:
        parts.append(quantities.plural(able, "more alternative" if more else "alternative"))
    if broken:
        parts.append(f"{broken:,} that cannot be run")
    return f"{'and ' if more else ''}{words.listed(parts)}"
