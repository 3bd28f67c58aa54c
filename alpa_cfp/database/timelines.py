"""The timeline of a step on one device, short enough to be kept: what computes and communicates, and what hides what.

Frozen values, and their text. Invariants: times are whole nanoseconds from the step's start; nothing overlaps with
another entry of its queue; the sums by kind are of all instructions, however few entries are left of them; a text is at
most `MOST_BYTES` long, and equal timelines have equal texts.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from alpa_cfp.codec import OMIT_DEFAULT, decode, encode
from alpa_cfp.database.errors import ProfileValueError
from alpa_cfp.database.values import canonical_json

Queue = Literal["computing", "communicating", "copying"]

# The kind of entries of which several instructions, of different kinds, are left.
SEVERAL = "several"
# The most entries and kinds of a timeline, and the most letters of the name of a kind.
MOST_ENTRIES, MOST_KINDS, MOST_LETTERS = 320, 24, 32
# The most bytes of a timeline's text.
MOST_BYTES = 64_000


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """What a queue does for a while: an instruction, or several that follow each other.

    Attributes:
        queue: Where it runs.
        kind: `product`, `fusion`, ..., a collective's kind; `loop` for the further trips of a loop, with all that
            communicates in them; `SEVERAL`.
        start_ns, end_ns: From the step's start.
        size_bytes: What it moves, or what a device gives into its collectives.
        count: The number of instructions.
        idle_ns: The time between them in which the queue does nothing.
        exposed_ns: Of collectives the time for which the computation waits. It is the end of a single one.
    """

    queue: Queue
    kind: str
    start_ns: int
    end_ns: int
    size_bytes: int
    count: int = field(default=1, metadata=OMIT_DEFAULT)
    idle_ns: int = field(default=0, metadata=OMIT_DEFAULT)
    exposed_ns: int = field(default=0, metadata=OMIT_DEFAULT)

    @property
    def busy_ns(self) -> int:
        """The time in which the queue does something."""
        return self.end_ns - self.start_ns - self.idle_ns


@dataclass(frozen=True, slots=True)
class KindTotal:
    """The sums over the instructions of one kind in one queue.

    Attributes:
        queue, kind: As of entries.
        count, busy_ns, size_bytes, exposed_ns: The sums.
    """

    queue: Queue
    kind: str
    count: int
    busy_ns: int
    size_bytes: int
    exposed_ns: int = field(default=0, metadata=OMIT_DEFAULT)


@dataclass(frozen=True, slots=True)
class StepTimeline:
    """A step of a program on one device, as modelled.

    Attributes:
        step_s: Its seconds: `computing_s`, `exposed_s` and `copies_s`.
        computing_s: The computing queue's, without waiting.
        communicating_s: The communicating queue's.
        hidden_s: The part of that which runs while something computes, or waits for a copy.
        copies_s: The seconds for which the computation waits for copies between memories.
        entries: In the order of their starts.
        kinds: The sums by queue and kind, the longest first; the further trips of a loop are one kind, `loop`.
        unknown_loops: The number of loops whose trips are not known, and of which one is counted.

    Raises:
        ProfileValueError: an entry ends before it starts, or overlaps with another one of its queue, or there are more
            entries than `MOST_ENTRIES`.
    """

    step_s: float
    computing_s: float
    communicating_s: float
    hidden_s: float
    copies_s: float
    entries: tuple[TimelineEntry, ...]
    kinds: tuple[KindTotal, ...]
    unknown_loops: int = field(default=0, metadata=OMIT_DEFAULT)

    def __post_init__(self) -> None:
        if len(self.entries) > MOST_ENTRIES or len(self.kinds) > MOST_KINDS:
            rule = f"there are at most {MOST_ENTRIES} entries of {MOST_KINDS} kinds"
            raise ProfileValueError("entries of a timeline", (len(self.entries), len(self.kinds)), rule)
        ends: dict[Queue, int] = {}
        for each in self.entries:
            # Of one that holds several the idle time and the exposed one are parts.
            if each.start_ns < ends.get(each.queue, 0) or each.end_ns - each.start_ns < each.idle_ns + each.exposed_ns:
                rule = "it must start after those before it in its queue, and end after all that it holds"
                raise ProfileValueError("an entry of a timeline", each, rule)
            ends[each.queue] = each.end_ns

    @property
    def exposed_s(self) -> float:
        """The seconds for which the computation waits for communication."""
        return max(0.0, self.communicating_s - self.hidden_s)

    def of_queue(self, queue: Queue) -> tuple[TimelineEntry, ...]:
        """The entries of a queue, in order."""
        return tuple(each for each in self.entries if each.queue == queue)


def totals_of(entries: Iterable[TimelineEntry]) -> tuple[KindTotal, ...]:
    """The sums over entries by queue and kind, the longest first; beyond `MOST_KINDS` the rest is `SEVERAL`."""
    found: dict[tuple[Queue, str], KindTotal] = {}
    for each in entries:
        own = KindTotal(each.queue, each.kind, each.count, each.busy_ns, each.size_bytes, each.exposed_ns)
        _add(found, own)
    ordered = sorted(found.values(), key=lambda each: (-each.busy_ns, each.queue, each.kind))
    if len(ordered) <= MOST_KINDS:
        return tuple(ordered)
    # One of `SEVERAL` may be needed for each queue.
    most = MOST_KINDS - 3
    kept: dict[tuple[Queue, str], KindTotal] = {(each.queue, each.kind): each for each in ordered[:most]}
    for each in ordered[most:]:
        _add(kept, KindTotal(each.queue, SEVERAL, each.count, each.busy_ns, each.size_bytes, each.exposed_ns))
    return tuple(kept.values())


def _add(found: dict[tuple[Queue, str], KindTotal], each: KindTotal) -> None:
    key = each.queue, each.kind
    before = found.get(key, KindTotal(*key, 0, 0, 0))
    found[key] = KindTotal(
        *key,
        before.count + each.count,
        before.busy_ns + each.busy_ns,
        before.size_bytes + each.size_bytes,
        before.exposed_ns + each.exposed_ns,
    )


def timeline_text(timeline: StepTimeline) -> str:
    """The canonical JSON text of a timeline."""
    return canonical_json(encode(timeline))


def timeline_from_text(text: Any) -> StepTimeline:
    """The timeline of a text of `timeline_text`; ProfileValueError if there is none."""
    try:
        return decode(StepTimeline, json.loads(text))
    except ProfileValueError:
        raise
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ProfileValueError("a timeline", text, "it must be the JSON text of one") from None
