"""Ratios, strategies and alternatives of a plan report as short texts.

Invariants: a time is in ms with three significant digits, a size in decimal bytes; a strategy is described by the dims
and axes that it splits, never by an index of the search.
"""

from collections.abc import Iterable, Sequence

from alpa_cfp import quantities
from alpa_cfp.database import StepTimeline
from alpa_cfp.plan.plan import Plan
from alpa_cfp.plan.plan_report import Alternative, BlockKind, Communication, CommunicationSource, Role
from alpa_cfp.strategies.block_strategy import StateSharding

# In the order of the text: splits of weights first.
_SPLIT: dict[Role, str] = {
    "columns": "weights split by column",
    "rows": "weights split by row",
    "heads": "heads split",
    "experts": "experts split",
    "batch": "heads or experts split",
    "samples": "samples split",
}
# Appended to the list of collectives.
_KNOWN_FROM: dict[CommunicationSource, str] = {
    "program": "",
    "compiled": " (by the compiled program)",
    "predicted": " (predicted, XLA partitions this block)",
}
# What times by each source of costs are: of parts, and of a whole plan.
COSTS = {"measure": "measured", "compile": "modelled", "replay": "measured before", "estimate": "estimated"}
# Times whose ratio differs less from one are shown as equal.
_ALIKE = 0.005


def is_modelled(plan: Plan) -> bool:
    """Whether the programs of a plan were compiled for devices that are not here, and none has run."""
    return plan.costs == "compile"


def found(plan: Plan) -> str:
    """How the times of whole plans were found: "measured", "modelled"."""
    return "modelled" if is_modelled(plan) else "measured"


def recomputed(plan: Plan) -> str:
    """What the backward pass computes again: "the backward pass computes blocks 1 to 8 (layer/0 to layer/3) again".

    Empty if it computes nothing again.
    """
    parts = plan.signature.recomputed if plan.signature else ()
    if not parts:
        return ""
    runs = list[list[int]]()
    for block in sorted({block for part in parts for block in part.blocks}):
        if runs and block == runs[-1][-1] + 1:
            runs[-1].append(block)
        else:
            runs.append([block])
    freed = quantities.size(sum(part.freed_bytes for part in parts))
    but = ", but for their products," if parts[0].keeps_products else ""
    blocks = "; ".join(_run(plan, run) for run in runs)
    return f"the backward pass computes {blocks} again{but} and {freed} less are kept, before they are split"


def in_parts(plan: Plan) -> str:
    """How the samples go through the step: "the samples go through the step in 4 micro-batches"; empty for at once."""
    parts = plan.signature.micro_batches if plan.signature else None
    return f"the samples go through the step in {parts.count} micro-batches" if parts else ""


def _run(plan: Plan, run: Sequence[int]) -> str:
    """Blocks that follow one another, with their names: "blocks 1 to 8 (layer/0/attention to layer/1/down)"."""
    ends = [run[0], run[-1]] if len(run) > 1 else [run[0]]
    known = plan.account.blocks if plan.account else ()
    names = [known[block].name for block in ends] if ends[-1] < len(known) else []
    named = f" ({' to '.join(names)})" if names else ""
    return f"{'blocks' if len(run) > 1 else 'block'} {' to '.join(map(str, ends))}{named}"


def overlap(timeline: StepTimeline) -> str:
    """A modelled step: "computation 5.9 ms, communication 2.0 ms, of which 0.5 ms (25%) runs beside computation"."""
    said = [f"computation {quantities.time(timeline.computing_s)}"]
    if timeline.communicating_s:
        hidden = f"{quantities.time(timeline.hidden_s)} ({share(timeline.hidden_s, timeline.communicating_s)})"
        said.append(
            f"communication {quantities.time(timeline.communicating_s)}, of which {hidden} runs beside computation"
        )
    else:
        said.append("no communication")
    if timeline.copies_s:
        said.append(f"copies are waited for {quantities.time(timeline.copies_s)}")
    return ", ".join(said)


def share(part: float, whole: float) -> str:
    """`part` as a percentage of `whole`: "12%", "<1%"."""
    if whole <= 0 or part <= 0:
        return "0%"
    percent = 100 * part / whole
    return "<1%" if percent < 0.5 else f"{percent:.0f}%"


def slower(seconds: float, reference_s: float) -> str:
    """Compares a time with another: "as fast", "12% slower", "3.1 times as slow", "4% faster"."""
    if reference_s <= 0:
        return "as fast" if seconds <= 0 else "slower"
    ratio = seconds / reference_s
    if abs(ratio - 1) < _ALIKE:
        return "as fast"
    if ratio >= 2:
        return f"{quantities.digits(ratio, 2)} times as slow"
    if ratio > 1:
        return f"{_percent(ratio - 1)} slower"
    return f"{_percent(1 - ratio)} faster"


def off(predicted: float, real: float) -> str:
    """Compares a prediction with a measurement: "4.6% too low", "exact"."""
    if real <= 0 or abs(predicted / real - 1) < _ALIKE:
        return "exact"
    ratio = predicted / real
    return f"{_percent(abs(ratio - 1))} too {'high' if ratio > 1 else 'low'}"


def listed(parts: Iterable[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    *most, last = parts
    return f"{', '.join(most)} and {last}" if most else last


def axes(indices: Iterable[int], names: Sequence[str]) -> str:
    """Mesh axes by their names: "axis 1", "axes 0 and 1", "axis model"."""
    own = [names[index].removeprefix("axis ") for index in indices]
    return f"{'axis' if len(own) == 1 else 'axes'} {listed(own)}"


def axes_of_mesh(shape: Sequence[int], names: Sequence[str]) -> str:
    """The axes of a mesh with their sizes: "axis 0 has 2 devices, axis 1 has 4"."""
    sizes = [f"{axes((index,), names)} has {size}" for index, size in enumerate(shape)]
    return listed([f"{sizes[0]} {'device' if shape[0] == 1 else 'devices'}", *sizes[1:]]) if sizes else "one device"


def strategy(alternative: Alternative, shape: Sequence[int], names: Sequence[str]) -> str:
    """A strategy: "weights split by column on axis 1; samples split on axis 0; optimizer state sharded along axis 0".

    Args:
        alternative: The alternative with the strategy.
        shape: The sizes of the mesh's axes; one of a single device is not mentioned.
        names: The axes' names.
    """
    real = [axis for axis, devices in enumerate(shape) if devices > 1]
    if not real:
        return "on one device"
    said = []
    for role, words in _SPLIT.items():
        own: dict[str | None, list[int]] = {}
        for axis in real:
            if alternative.roles[axis] == role:
                own.setdefault(alternative.which[axis] if alternative.which else None, []).append(axis)
        said += [f"{words}{f' ({which})' if which else ''} on {axes(of, names)}" for which, of in own.items()]
    same = [axis for axis in real if alternative.roles[axis] is None]
    if len(same) == len(real):
        said.append("replicated on every device")
    elif same:
        said.append(f"replicated on {axes(same, names)}")
    if alternative.sums_along:
        said.append(f"sums kept in parts (split by {alternative.sums_along})")
    # The devices along these axes would replicate the weights, so state is sharded along them.
    sharing = [axis for axis in real if alternative.roles[axis] in ("samples", None)]
    if alternative.kept != StateSharding.REPLICATED:
        what = "optimizer state" if alternative.kept == StateSharding.ZERO2 else "weights and optimizer state"
        said.append(f"{what} sharded{' along ' + axes(sharing, names) if sharing else ''}")
    return "; ".join(said)


def communication(each: Communication, names: Sequence[str]) -> str:
    """Equal collectives: "gradient all-reduce 4.2 MB on axis 0", "2 all-gathers of 1.1 MB on axis 1".

    Args:
        each: The collectives.
        names: The axes' names.
    """
    purpose = f"{each.purpose} " if each.purpose else ""
    where = f" on {axes(each.axes, names)}" if each.axes else ""
    if each.count == 1:
        return f"{purpose}{each.kind} {quantities.size(each.size_bytes)}{where}"
    return f"{each.count:,} {purpose}{each.kind}s of {quantities.size(each.size_bytes)}{where}"


def communications(alternative: Alternative, names: Sequence[str], *, most: int = 3) -> str:
    """The collectives of an alternative, the largest first; "nothing is communicated" if there are none.

    If XLA partitions the block, the text includes where they were read, or that they are not known.
    """
    if alternative.communication_source == "unknown":
        return "what is communicated is not known: XLA partitions this block"
    known_from = _KNOWN_FROM[alternative.communication_source]
    ordered = sorted(alternative.communication, key=lambda each: -each.size_bytes * each.count)
    if not ordered:
        return f"nothing is communicated{known_from}"
    said = [communication(each, names) for each in ordered[:most]]
    rest = ordered[most:]
    if rest:
        said.append(
            f"{quantities.plural(sum(each.count for each in rest), 'smaller one')} "
            f"({quantities.size(sum(each.size_bytes * each.count for each in rest))})"
        )
    return f"{', '.join(said)}{known_from}"


def count_of_collectives(count: int | None) -> str:
    """The number of collectives in a whole program: "1,024", "not known"."""
    return "not known" if count is None else f"{count:,}"


def memory(state_bytes: int, saved_bytes: int, transient_bytes: int) -> str:
    """The memory of a device: "12 MB (state 10 MB, for the backward pass 1.5 MB, peak transient 0.5 MB)"."""
    parts = {"state": state_bytes, "for the backward pass": saved_bytes, "peak transient": transient_bytes}
    said = [f"{name} {quantities.size(count)}" for name, count in parts.items() if count]
    total = quantities.size(sum(parts.values()))
    return f"{total} ({', '.join(said)})" if said else total


def held(alternative: Alternative) -> int:
    """The peak memory of a device for a block with a strategy, in bytes."""
    return alternative.state_bytes + alternative.saved_bytes + alternative.transient_bytes


def ordered(kind: BlockKind, chosen: int | None = None) -> tuple[Alternative, ...]:
    """The alternatives of a kind of block, without the chosen one if that is given.

    The fastest come first, then those of unknown time, then those that cannot be run.
    """
    others = [each for index, each in enumerate(kind.alternatives) if index != chosen]
    return tuple(sorted(others, key=lambda each: (bool(each.failure), each.time_s is None, each.time_s or 0.0)))


def verdict(alternative: Alternative, chosen: Alternative) -> str:
    """Compares an alternative with the chosen one: "12% slower", "time unknown", "cannot be run: ..."."""
    if alternative.failure:
        return f"cannot be run: {failure(alternative.failure)}"
    if alternative.time_s is None or chosen.time_s is None:
        return "time unknown" if alternative.time_s is None else "cannot be compared"
    return slower(alternative.time_s, chosen.time_s)


def failure(text: str, most: int = 120) -> str:
    """The reason of a failure in one line, shortened to `most` characters."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def _percent(ratio: float) -> str:
    return f"{quantities.digits(100 * ratio, 2)}%"
