"""A plan explained as text: takes a plan, gives what it decided block by block, why, and what it costs.

Invariant: equal blocks of equal layers are said once, so the text grows with the kinds of blocks and not with the
depth of the model. A plan without an account is explained from its strategies alone.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from alpa_cfp import quantities
from alpa_cfp.plan.plan import Plan
from alpa_cfp.plan.plan_report import Alternative, Caveat, PlanReport, Tried
from alpa_cfp.report import words
from alpa_cfp.report.choices import failure, ordered, verdict
from alpa_cfp.report.folding import Folded, chosen, fold
from alpa_cfp.report.tables import aligned
from alpa_cfp.report.totals import blocks_s, memories, moves_s, parts_s, times
from alpa_cfp.strategies.block_strategy import StateSharding

# How many alternatives of a block and contributions to a step are said.
_ALTERNATIVES, _CONTRIBUTIONS = 3, 8
# A prediction of the whole program that differs from its parts' sum by more is explained.
_NOTEWORTHY = 0.01


def explain(plan: Plan, *, blocks: Collection[int] | None = None, everything: bool = False) -> str:
    """What a plan decided, why, and what it costs.

    Args:
        plan: The plan.
        blocks: Indices of the blocks to speak of; None for the whole plan.
        everything: Whether all alternatives and contributions are said, and not only the largest.
    """
    account = plan.account
    if account is None:
        return "\n".join([*heading(plan), "", *_from_strategies(plan)]) + "\n"
    said = _Explained(plan, account, fold(account), everything)
    if blocks is not None:
        return "\n".join(said.blocks(blocks)).strip("\n") + "\n"
    sections = (
        heading(plan),
        said.tried(),
        said.blocks(),
        said.time(),
        said.memory(),
        said.without_rule(),
        said.caveats(),
    )
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def heading(plan: Plan) -> list[str]:
    """What there is to say of a plan as a whole."""
    account = plan.account
    blocks = quantities.plural(len(plan.strategies), "block")
    of_kinds = f" of {quantities.plural(len(account.kinds), 'kind')}" if account else ""
    named = f": {words.axes_of_mesh(plan.mesh_shape, account.axis_names)}" if account else ""
    return [
        f"Plan for a {words.mesh(plan.mesh_shape)} mesh{named}. {blocks}{of_kinds}.",
        f"  step    {step(plan)}",
        f"  memory  {needed(plan)}",
        f"  costs   {costs(plan)}",
        *([f"  search  {searched(plan)}"] if searched(plan) else []),
    ]


def step(plan: Plan) -> str:
    """What a step takes: "45.2 ms measured, 43.1 ms predicted (4.6% too low)"."""
    predicted = f"{quantities.time(plan.predicted_s)} predicted"
    if plan.measured_s is None:
        return f"{predicted}; the whole program was not run"
    return f"{quantities.time(plan.measured_s)} measured, {predicted} ({words.off(plan.predicted_s, plan.measured_s)})"


def needed(plan: Plan) -> str:
    """What a device needs."""
    memory = plan.memory
    predicted = f"{words.memory(memory.state, memory.saved, memory.transient)}"
    if plan.needed_bytes is None:
        return f"{predicted} predicted for a device"
    return f"{quantities.size(plan.needed_bytes)} on a device by the compiled program; predicted {predicted}"


def costs(plan: Plan) -> str:
    """Where the times come from."""
    origin = {
        "measure": "measured on the mesh",
        "replay": "measured on such a mesh before",
        "estimate": "estimated, nothing was measured",
    }
    said = origin.get(plan.costs, plan.costs)
    count = plan.account.programs_measured if plan.account else 0
    return f"{said}; {quantities.plural(count, 'program')} profiled or looked up" if count else said


def searched(plan: Plan) -> str:
    """How far from the best the search may have ended: "another plan could be predicted to be 1.2 ms (3%) faster at
    most"; empty where it was exact.
    """
    account = plan.account
    if account is None or account.gap_s == 0:
        return ""
    if account.gap_s is None:
        return "not exact; nothing was proved of how much faster another plan could be"
    part = words.share(account.gap_s, plan.predicted_s)
    return f"not exact: another plan could be predicted to be at most {quantities.time(account.gap_s)} ({part}) faster"


def _from_strategies(plan: Plan) -> Iterator[str]:
    """What can be said of a plan that keeps no account."""
    kept = {
        StateSharding.REPLICATED: "",
        StateSharding.ZERO2: ", optimizer state shared",
        StateSharding.ZERO3: ", weights and optimizer state shared",
    }
    names = [f"axis {index}" for index in range(len(plan.mesh_shape))]
    counts: Counter[str] = Counter()
    for each in plan.strategies:
        split = [axis for axis, factor in enumerate(each.factors) if factor is not None]
        counts[
            (f"split on {words.axes(split, names)}" if split else "repeated on every device")
            + kept[each.state_sharding]
        ] += 1
    yield "Blocks"
    for text, count in counts.most_common():
        yield f"  {quantities.plural(count, 'block')}: {text}"
    yield ""
    yield "This plan keeps no account, so nothing is known of its blocks' names, times and alternatives."
    yield "Plan the program again and save the new plan to see them."


@dataclass(frozen=True, slots=True)
class _Explained:
    """A plan whose account is put into words, section by section."""

    plan: Plan
    account: PlanReport
    segments: tuple[Folded, ...]
    everything: bool

    def tried(self) -> list[str]:
        """The whole plans that were timed."""
        if not self.account.tried:
            return ["Tried whole", "  No plan was compiled and run whole; this one is the best predicted."]
        rows = [("", "plan", "measured", "predicted", "memory", "collectives", "")]
        rows += [self._tried_row(each) for each in self.account.tried]
        return ["Tried whole (* is this plan)", *aligned(rows, "<<>>>><", indent=2)]

    def _tried_row(self, each: Tried) -> tuple[str, ...]:
        mark, predicted = "*" if each.chosen else "", quantities.time(each.predicted_s)
        if each.failure:
            return (mark, each.name, "failed", predicted, "", "", failure(each.failure))
        memory = "" if each.needed_bytes is None else quantities.size(each.needed_bytes)
        measured = "not run" if each.measured_s is None else quantities.time(each.measured_s)
        return (mark, each.name, measured, predicted, memory, words.count_of_collectives(each.collectives), "")

    def blocks(self, only: Collection[int] | None = None) -> list[str]:
        """The blocks, equal ones once."""
        lines = [
            "Blocks, in the order of the program. Times are of a block by itself. An alternative that is faster by"
        ]
        lines.append("itself can still lose: it may need moves between blocks, or memory, that cost more.")
        for segment in self.segments:
            positions = [
                position
                for position in range(len(segment.first))
                if only is None or any(copy[position] in only for copy in segment.copies)
            ]
            if not positions:
                continue
            titled = len(segment.first) > 1
            if titled:
                lines += ["", f"{segment.title}{self._times(segment)}: {self._time_of(segment)}"]
            for position in positions:
                lines += ["", *self._block(segment, position, "  " if titled else "")]
        return lines

    def _times(self, segment: Folded) -> str:
        return f" x {segment.count}" if segment.count > 1 else ""

    def _time_of(self, segment: Folded) -> str:
        return self._time([chosen(self.account, self.account.blocks[i]).time_s for i in segment.first], segment.count)

    def _time(self, seconds: Sequence[float | None], count: int) -> str:
        known = [each for each in seconds if each is not None]
        if not known:
            return "time unknown"
        one = sum(known)
        part = words.share(count * one, parts_s(self.account))
        return (
            f"{quantities.time(one)} each, {quantities.time(count * one)} together ({part})"
            if count > 1
            else (f"{quantities.time(one)} ({part})")
        )

    def _block(self, segment: Folded, position: int, indent: str) -> Iterator[str]:
        block = self.account.blocks[segment.first[position]]
        kind, own, shape = self.account.kinds[block.kind], chosen(self.account, block), self.plan.mesh_shape
        names, count = self.account.axis_names, segment.count
        repeated = "" if len(segment.first) > 1 else self._times(segment)
        yield f"{indent}{segment.names[position]}{repeated}: {self._time([own.time_s], count)}"
        inner = indent + "  "
        source = "" if own.time_s is None else f"; time {own.source}"
        yield f"{inner}{kind.contraction}, {quantities.plural(kind.ops, 'op')}{source}"
        yield f"{inner}{words.strategy(own, shape, names)}"
        yield f"{inner}{words.communications(own, names)}"
        each = " each" if count > 1 else ""
        yield f"{inner}memory{each} {words.memory(block.state_bytes, block.saved_bytes, block.transient_bytes)}"
        if self.everything and block.weights:
            yield f"{inner}weights {', '.join(block.weights)}"
        others = ordered(kind, block.chosen)
        said = others if self.everything else [other for other in others if other.time_s is not None][:_ALTERNATIVES]
        rows = [
            (
                "or" if index else "instead",
                "" if other.time_s is None else quantities.time(other.time_s),
                "cannot be run" if other.failure else verdict(other, own),
                quantities.size(words.held(other)),
                words.strategy(other, shape, names) + (f" ({failure(other.failure)})" if other.failure else ""),
            )
            for index, other in enumerate(said)
        ]
        yield from aligned(rows, "<>>><", indent=len(inner))
        if len(others) > len(said):
            yield f"{inner}{_left_out(others[len(said) :], bool(said))}"

    def time(self) -> list[str]:
        """Where the time goes."""
        account, total = self.account, parts_s(self.account)
        shares = times(account, self.segments)
        said = shares if self.everything else shares[:_CONTRIBUTIONS]
        rows = [
            (quantities.time(each.time_s), words.share(each.time_s, total), _counted(each.name, each.count))
            for each in said
        ]
        rest = sum(each.time_s for each in shares[len(said) :])
        if rest:
            rows.append((quantities.time(rest), words.share(rest, total), "all else"))
        lines = [
            f"Where the time goes: blocks {quantities.time(blocks_s(account))}, moves between them "
            f"{quantities.time(moves_s(account))}, starting the program {quantities.time(account.overhead_s)}",
            *aligned(rows, ">><", indent=2),
        ]
        beside = self.plan.predicted_s - total
        if total > 0 and abs(beside) > _NOTEWORTHY * self.plan.predicted_s:
            more = "more" if beside > 0 else "less"
            lines.append(
                f"  The whole program is predicted to take {quantities.time(abs(beside))} {more} than its parts."
            )
        return lines

    def memory(self) -> list[str]:
        """Where the memory goes."""
        shares = [each for each in memories(self.account, self.segments) if each.lasting_bytes]
        total = sum(each.lasting_bytes for each in shares)
        said = shares if self.everything else shares[:_CONTRIBUTIONS]
        rows = [
            (
                quantities.size(each.lasting_bytes),
                words.share(each.lasting_bytes, total),
                f"{_counted(each.name, each.count)} (state {quantities.size(each.state_bytes)}, for the backward pass "
                f"{quantities.size(each.saved_bytes)})",
            )
            for each in said
        ]
        rest = sum(each.lasting_bytes for each in shares[len(said) :])
        if rest:
            rows.append((quantities.size(rest), words.share(rest, total), "all else"))
        lines = [
            f"Where the memory of a device goes: {quantities.size(total)} of state and for the backward pass",
            *aligned(rows, ">><", indent=2),
        ]
        brief = max(memories(self.account, self.segments), key=lambda each: each.transient_bytes, default=None)
        if brief is not None and brief.transient_bytes:
            lines.append(f"  Most is needed briefly by {brief.name}: {quantities.size(brief.transient_bytes)}.")
        return lines

    def without_rule(self) -> list[str]:
        """The ops that have no sharding rule."""
        found = [
            f"  {', '.join(kind.without_rule)} in {_counted(segment.full_names[position], segment.count)}"
            for segment in self.segments
            for position, block in enumerate(segment.first)
            if (kind := self.account.kinds[self.account.blocks[block].kind]).without_rule
        ]
        if not found:
            return ["Every op has a sharding rule."]
        return ["Ops without a sharding rule, which every device computes whole:", *found]

    def caveats(self) -> list[str]:
        """What the planner had to do without."""
        found = self.account.caveats
        if not found:
            return []
        return ["What the planner had to do without (! where the plan may be worse for it)", *_caveat_lines(found)]


def _caveat_lines(caveats: Sequence[Caveat]) -> list[str]:
    return [f"  {'! ' if each.may_cost else '- '}{each.text}" for each in caveats]


def _counted(name: str, count: int) -> str:
    return f"{name} x {count}" if count > 1 else name


def _left_out(others: Sequence[Alternative], more: bool) -> str:
    broken = sum(bool(other.failure) for other in others)
    able, said = len(others) - broken, []
    if able:
        said.append(quantities.plural(able, "more alternative" if more else "alternative"))
    if broken:
        said.append(f"{broken:,} that cannot be run")
    return f"{'and ' if more else ''}{words.listed(said)}"
