"""Compares two plans: their differences, block by block, and the costs of these.

Invariants: equal plans are reported as equal; a difference that many blocks share is reported once. Plans of different
programs are compared by the names of their blocks, plans for different meshes by the splits, not by their degrees.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from alpa_cfp import quantities
from alpa_cfp.plan.plan import Plan
from alpa_cfp.plan.plan_report import PlanReport
from alpa_cfp.report import words
from alpa_cfp.report.folding import span
from alpa_cfp.report.totals import moves_s


@dataclass(frozen=True, slots=True)
class Side:
    """Equal blocks under one of two plans.

    Attributes:
        strategy: Their strategy in words.
        time_s: Time of one of them; None if it is not known.
        memory_bytes: Memory of a device for one of them.
    """

    strategy: str
    time_s: float | None
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Difference:
    """Equal blocks for which two plans differ.

    Attributes:
        name: Their common name: "encoder/layer/0-23/mlp/up".
        blocks: Their names.
        first, second: The blocks under each plan; None if the plan has no such blocks.
    """

    name: str
    blocks: tuple[str, ...]
    first: Side | None
    second: Side | None


def diff(a: Plan, b: Plan) -> str:
    """Describes the differences of `b` from `a`."""
    if a == b:
        return "The plans are equal.\n"
    sections = [_context(a, b), _totals(a, b)]
    if a.account is None or b.account is None:
        sections.append(_without_report(a, b))
    else:
        sections.append(_blocks(a, differences(a, b)))
    return "\n\n".join("\n".join(section) for section in sections if section) + "\n"


def differences(a: Plan, b: Plan) -> tuple[Difference, ...]:
    """The blocks for which two plans differ, equal ones together; empty if a plan has no report."""
    if a.account is None or b.account is None:
        return ()
    found: dict[tuple[object, ...], list[tuple[str, Side | None, Side | None]]] = {}
    for first, second in _pairs(a, b, a.account, b.account):
        own = None if first is None else _side(a, a.account, first)
        other = None if second is None else _side(b, b.account, second)
        if own is not None and other is not None and own.strategy == other.strategy:
            continue
        kinds = (
            None if first is None else a.account.blocks[first].kind,
            None if second is None else b.account.blocks[second].kind,
        )
        name = (a.account.blocks[first] if first is not None else b.account.blocks[second or 0]).name
        key = (*kinds, own and own.strategy, other and other.strategy)
        found.setdefault(key, []).append((name, own, other))
    return tuple(
        Difference(span([name for name, *_ in same]), tuple(name for name, *_ in same), *same[0][1:])
        for same in found.values()
    )


def _pairs(a: Plan, b: Plan, first: PlanReport, second: PlanReport) -> list[tuple[int | None, int | None]]:
    """Indices of the blocks that are compared; None for a block without a counterpart."""
    if a.program == b.program and len(first.blocks) == len(second.blocks):
        return [(i, i) for i in range(len(first.blocks))]
    names = {block.name: i for i, block in enumerate(second.blocks)}
    pairs: list[tuple[int | None, int | None]] = [
        (i, names.pop(each.name, None)) for i, each in enumerate(first.blocks)
    ]
    return pairs + [(None, i) for i in names.values()]


def _side(plan: Plan, report: PlanReport, index: int) -> Side:
    block = report.blocks[index]
    own = report.chosen(block)
    held = block.state_bytes + block.saved_bytes
    return Side(words.strategy(own, plan.mesh_shape, report.axis_names), own.time_s, held)


def _context(a: Plan, b: Plan) -> list[str]:
    """Differences of program and mesh."""
    lines = []
    if a.program != b.program:
        lines.append("The plans are for different programs; blocks of the same name are compared.")
    if a.mesh_shape != b.mesh_shape:
        own, other = quantities.a_mesh(a.mesh_shape), quantities.a_mesh(b.mesh_shape)
        lines.append(f"The meshes differ: A is for {own}, B for {other}.")
    else:
        lines.append(f"Both plans are for {quantities.a_mesh(a.mesh_shape)}.")
    return lines


def _totals(a: Plan, b: Plan) -> list[str]:
    """The plans as a whole."""
    rows: list[tuple[str, ...]] = [("", "A", "B", "B against A")]
    if a.measured_s is not None or b.measured_s is not None:
        rows.append(
            _row(
                "step, modelled" if words.is_modelled(a) and words.is_modelled(b) else "step, measured",
                a.measured_s,
                b.measured_s,
            )
        )
    rows.append(_row("step, predicted", a.predicted_s, b.predicted_s))
    if a.account and b.account:
        rows.append(_row("moves between blocks", moves_s(a.account), moves_s(b.account)))
        counts = [next((each.collectives for each in x.tried if each.chosen), None) for x in (a.account, b.account)]
        if None not in counts:
            rows.append(("collectives", *(f"{count:,}" for count in counts), ""))
    if a.needed_bytes is not None or b.needed_bytes is not None:
        rows.append(_bytes_row("memory, compiled", a.needed_bytes, b.needed_bytes))
    rows.append(_bytes_row("memory, predicted", a.memory.total, b.memory.total))
    rows.append(_bytes_row("  state", a.memory.state, b.memory.state))
    rows.append(_bytes_row("  for the backward pass", a.memory.saved, b.memory.saved))
    rows.append(_bytes_row("  peak transient", a.memory.transient, b.memory.transient))
    rows.append(("costs", *(words.COSTS.get(x.costs, x.costs) for x in (a, b)), ""))
    return quantities.aligned(rows, "<>><", indent=2)


def _row(name: str, first: float | None, second: float | None) -> tuple[str, ...]:
    said = "" if first is None or second is None or not first else words.slower(second, first)
    return (name, _time(first), _time(second), said)


def _time(seconds: float | None) -> str:
    return "not run" if seconds is None else quantities.time(seconds)


def _bytes_row(name: str, first: int | None, second: int | None) -> tuple[str, ...]:
    said = [("unknown" if count is None else quantities.size(count)) for count in (first, second)]
    return (name, *said, "" if first is None or second is None else _more(second, first))


def _more(count: int, reference: int) -> str:
    """The difference of two sizes: "120 MB more", "as much"."""
    if count == reference:
        return "as much"
    return f"{quantities.size(abs(count - reference))} {'more' if count > reference else 'less'}"


def _blocks(a: Plan, found: Sequence[Difference]) -> list[str]:
    """The differences of blocks between two plans with reports, of which `a` is the first."""
    both = [each for each in found if each.first is not None and each.second is not None]
    alone = {"A": [each for each in found if each.second is None], "B": [each for each in found if each.first is None]}
    common = len(a.strategies) - _count(alone["A"])
    lines = []
    if both:
        lines.append(f"They do different things with {_count(both):,} of {quantities.plural(common, 'block')}:")
    elif common:
        only = "" if any(alone.values()) else ": only costs differ"
        lines.append(
            f"They do the same with {'every block' if common == len(a.strategies) else 'common blocks'}{only}."
        )
    for each in both:
        one = " each" if len(each.blocks) > 1 else ""
        rows = [
            (label, quantities.time(side.time_s) + one, quantities.size(side.memory_bytes) + one, side.strategy)
            for label, side in (("A", each.first), ("B", each.second))
            if side is not None
        ]
        lines += ["", f"  {_counted(each)}", *quantities.aligned(rows, "<>><", indent=4)]
    for label, own in alone.items():
        if own:
            lines += ["", f"Only {label} has {quantities.plural(_count(own), 'block')} of these names:"]
            lines += quantities.aligned(
                [
                    (_counted(each), quantities.time(side.time_s), side.strategy)
                    for each in own
                    if (side := each.first or each.second) is not None
                ],
                "<><",
                indent=2,
            )
    return lines


def _count(found: Sequence[Difference]) -> int:
    return sum(len(each.blocks) for each in found)


def _counted(each: Difference) -> str:
    return each.name if len(each.blocks) == 1 else f"{each.name} ({len(each.blocks)} blocks)"


def _without_report(a: Plan, b: Plan) -> list[str]:
    """The differences of strategies if a plan has no report."""
    which = words.listed(label for label, plan in (("A", a), ("B", b)) if plan.account is None)
    reason = f"{which} {'have' if ' and ' in which else 'has'} no report, so blocks cannot be named."
    if a.program != b.program or len(a.strategies) != len(b.strategies):
        return [f"Their blocks cannot be compared: {reason}"]
    pairs = zip(a.strategies, b.strategies, strict=True)
    other = [str(i) for i, (first, second) in enumerate(pairs) if first != second]
    if not other:
        return [f"They do the same with every block. {reason}"]
    said = ", ".join(other[:12]) + (f" and {len(other) - 12} more" if len(other) > 12 else "")
    return [
        f"They do different things with {len(other):,} of {quantities.plural(len(a.strategies), 'block')}: {said}.",
        reason,
    ]
