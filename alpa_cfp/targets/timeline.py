"""The step of a scheduled program on one device: what computes, what communicates, and what hides what.

Takes a scheduled program, the seconds of instructions that compute and the seconds of collectives; gives a `Timeline`.
The program is walked in the order of its schedule. What computes runs one after the other; so does what communicates,
beside it: the `-start` of a collective puts it behind those that were started before, and its `-done` makes the
computation wait for it. A collective without start and done does both. Copies between memories that are started and
awaited have a queue of their own. Invariants: `step_s` is `computing_s` + what of communication is not hidden + what is
waited for copies; nothing overlaps with another entry of its queue.

What communicates takes cores and bandwidth away from what computes; that is not modelled.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from alpa_cfp.targets.clock import Clock
from alpa_cfp.targets.computing import Work
from alpa_cfp.targets.errors import ScheduleError
from alpa_cfp.targets.hlo_collectives import COLLECTIVES, Groups, collective_of, replica_groups
from alpa_cfp.targets.hlo_loops import trip_count
from alpa_cfp.targets.hlo_text import Computation, Instruction, ScheduledModule

Queue = Literal["computing", "communicating", "copying"]
Walked = Callable[[ScheduledModule, Computation, Instruction], Work]
Copied = Callable[[Instruction], float]

_START, _DONE, _UPDATE = "-start", "-done", "-update"
# A TPU's compiler puts the two ends of a collective into fusions, and the steps between into fusions that compute.
_FUSED_START, _FUSED_DONE = "AsyncCollectiveStart", "AsyncCollectiveDone"
_ALIAS = re.compile(r"\{(\d+)\}: \((\d+), ")
_NOT_TIMED = frozenset({"send", "recv", "infeed", "outfeed"})


@dataclass(frozen=True, slots=True)
class CollectiveOp:
    """A collective of a program.

    Attributes:
        kind: As HLO names it, without start and done: `all-reduce`, ...
        operand_bytes: Of all arrays that a device gives into it.
        groups: The devices that take part, a tuple for each group; of a `collective-permute` pairs (source, target).
        arrays: How many arrays it has.
    """

    kind: str
    operand_bytes: int
    groups: Groups
    arrays: int = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """What a queue does for a while.

    Attributes:
        name: The instruction; of a loop's further trips the loop, with their number.
        queue: Where it runs.
        start_s, end_s: From the step's start.
        kind: `product`, `fusion`, ..., the collective's kind, or `loop` for the further trips of one.
        size_bytes: What it moves, or what a device gives into a collective.
        exposed_s: Of a collective its last seconds, in which the computation waits for it.
    """

    name: str
    queue: Queue
    start_s: float
    end_s: float
    kind: str
    size_bytes: int
    exposed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Timeline:
    """A step.

    Attributes:
        step_s: Its seconds.
        computing_s: The computing queue's, without waiting.
        communicating_s: The communicating queue's.
        hidden_s: What of that runs while something computes, or waits for a copy.
        copies_s: What the computation waits for copies between memories.
        entries: In the order of their starts.
        unknown_loops: Loops whose trips the program does not tell, and of which one is counted.
    """

    step_s: float
    computing_s: float
    communicating_s: float
    hidden_s: float
    copies_s: float
    entries: tuple[Entry, ...]
    unknown_loops: tuple[str, ...] = ()


def walk(
    module: ScheduledModule,
    work_of: Walked,
    collective_s: Callable[[CollectiveOp], float],
    copying_s: Copied = lambda _: 0.0,
) -> Timeline:
    """Walk the schedule of a program.

    A loop's body is walked twice, since its first trip may wait for what was started before, and the second one counts
    for all others. Of a conditional the longest branch counts.

    Args:
        module: The program.
        work_of: What an instruction takes that computes (`computing.computing_work`).
        collective_s: Seconds of a collective by itself.
        copying_s: Seconds of the `-start` of a copy between memories (`computing.copying_s`).

    Raises:
        ScheduleError: the program waits for what it has not started, or sends to and receives from a host.
        HloTextError: the groups of a collective cannot be read.
    """
    walker = _Walker(module, work_of, collective_s, copying_s)
    end = walker.walk(module.computations[module.entry], Clock())
    end = walker.wait(end, end.communicated_until_s)
    entries = _with_exposure(sorted(walker.entries, key=lambda entry: (entry.start_s, entry.end_s)), walker.waits)
    unknown = tuple(dict.fromkeys(walker.unknown_loops))
    # Sums of floats: where nothing is hidden, the difference may be a little below zero.
    hidden_s = max(0.0, end.communicating_s - end.exposed_s)
    return Timeline(end.now_s, end.computing_s, end.communicating_s, hidden_s, end.copies_s, entries, unknown)


def _with_exposure(entries: Sequence[Entry], waits: Sequence[tuple[float, float]]) -> tuple[Entry, ...]:
    """The entries, in their order, with what the computation waits for each.

    A wait ends when a collective does, so what is exposed of a collective is its end.

    Args:
        entries: In the order of their starts.
        waits: From when until when the computation waits for communication, in order.
    """
    found, at = list[Entry](), 0
    for entry in entries:
        if entry.queue != "communicating":
            found.append(entry)
            continue
        while at < len(waits) and waits[at][1] <= entry.start_s:
            at += 1
        start_s = max(waits[at][0], entry.start_s) if at < len(waits) else entry.end_s
        found.append(replace(entry, exposed_s=max(0.0, entry.end_s - start_s)))
    return tuple(found)


# When what was started will be done, by the name of its start.
_Pending = dict[str, tuple[Queue, float]]


@dataclass(slots=True)
class _Walker:
    """Walks computations and notes what it meets, unless it `is_silent` because that is noted already."""

    module: ScheduledModule
    work_of: Walked
    collective_s: Callable[[CollectiveOp], float]
    copying_s: Copied
    entries: list[Entry] = field(default_factory=list)
    waits: list[tuple[float, float]] = field(default_factory=list)
    unknown_loops: list[str] = field(default_factory=list)
    is_silent: bool = False
    works: dict[tuple[str, str], Work] = field(default_factory=dict)
    fused: dict[str, tuple[Computation, Instruction] | None] = field(default_factory=dict)

    def walk(self, computation: Computation, clock: Clock) -> Clock:
        """The clock after a computation that begins at `clock`."""
        pending: _Pending = {}
        for each in computation.instructions:
            clock = self._step(computation, each, clock, pending)
        return clock

    def wait(self, clock: Clock, until_s: float) -> Clock:
        """The clock when the communicating queue has done what it has until then."""
        if until_s > clock.now_s and not self.is_silent:
            self.waits.append((clock.now_s, until_s))
        return clock.waiting_for_communication(until_s)

    def _step(self, computation: Computation, each: Instruction, clock: Clock, pending: _Pending) -> Clock:
        opcode = each.opcode
        if opcode.removesuffix(_DONE) in _NOT_TIMED:
            raise ScheduleError.not_timed(each.name, opcode)
        if opcode == "while":
            return self._loop(computation, each, clock)
        if opcode in ("conditional", "call"):
            return self._longest(self.module.called_by(each), clock)
        if opcode.endswith(_UPDATE):
            return clock
        if opcode.endswith(_DONE):
            return self._done(computation, each, clock, pending)
        if opcode.endswith(_START):
            return self._start(computation, each, clock, pending)
        if opcode in COLLECTIVES:
            return self._communicate(each, self._op(computation, each), clock, is_waiting=True)
        found = self._collective_within(each) if opcode == "fusion" else None
        # What has cycles of its own computes, while the steps of a collective are taken in it.
        if found is not None and each.estimated_cycles is None:
            return self._fusion(computation, each, found, clock, pending)
        return self._compute(computation, each, clock)

    def _compute(self, computation: Computation, each: Instruction, clock: Clock) -> Clock:
        key = computation.name, each.name
        work = self.works.get(key)
        if work is None:
            work = self.works[key] = self.work_of(self.module, computation, each)
        if work.seconds == 0:
            return clock
        after = replace(clock, now_s=clock.now_s + work.seconds, computing_s=clock.computing_s + work.seconds)
        self._note(each.name, "computing", clock.now_s, after.now_s, work.kind or each.opcode, work.moved_bytes)
        return after

    def _communicate(self, each: Instruction, op: CollectiveOp, clock: Clock, *, is_waiting: bool) -> Clock:
        """Enqueue a collective behind those before it; its end is the new clock's `communicated_until_s`."""
        seconds = self.collective_s(op)
        start_s = max(clock.now_s, clock.communicated_until_s)
        self._note(each.name, "communicating", start_s, start_s + seconds, op.kind, op.operand_bytes)
        communicating_s = clock.communicating_s + seconds
        after = replace(clock, communicated_until_s=start_s + seconds, communicating_s=communicating_s)
        return self.wait(after, start_s + seconds) if is_waiting else after

    def _start(self, computation: Computation, each: Instruction, clock: Clock, pending: _Pending) -> Clock:
        kind = each.opcode.removesuffix(_START)
        within = collective_of(self.module.called_by(each)) if kind == "async" else None
        if kind in COLLECTIVES or within is not None:
            op = self._op(*within) if within is not None else self._op(computation, each)
            config = each.backend_config().get("collective_backend_config", {})
            after = self._communicate(each, op, clock, is_waiting=config.get("is_sync", False))
            pending[each.name] = "communicating", after.communicated_until_s
        elif kind == "async":
            # Another queue that computes would have the same cores.
            after = self._longest(self.module.called_by(each), clock)
            pending[each.name] = "computing", after.now_s
        else:
            start_s = max(clock.now_s, clock.copied_until_s)
            end_s = start_s + self.copying_s(each)
            self._note(each.name, "copying", start_s, end_s, kind, each.shapes[0].size_bytes)
            after = replace(clock, copied_until_s=end_s)
            pending[each.name] = "copying", end_s
        return after

    def _done(self, computation: Computation, each: Instruction, clock: Clock, pending: _Pending) -> Clock:
        queue, end_s = pending.pop(self._started(computation, each.operands[0]), (None, 0.0))
        if queue is None:
            raise ScheduleError.not_started(each.name)
        return clock.waiting_for_copy(end_s) if queue == "copying" else self.wait(clock, end_s)

    def _fusion(
        self,
        computation: Computation,
        each: Instruction,
        found: tuple[Computation, Instruction],
        clock: Clock,
        pending: _Pending,
    ) -> Clock:
        """A fusion that is a collective, or an end of one."""
        called, collective = found
        targets = {inner.custom_call_target for inner in called.instructions}
        if _FUSED_DONE in targets:
            return self._done(computation, each, clock, pending)
        op = self._op(called, collective)
        if _FUSED_START in targets:
            after = self._communicate(each, op, clock, is_waiting=False)
            pending[each.name] = "communicating", after.communicated_until_s
            return after
        cut = (inner for inner in called.instructions if inner.opcode == "dynamic-slice")
        if collective.opcode == "all-reduce" and any(collective.name in inner.operands for inner in cut):
            op = replace(op, kind="reduce-scatter")
        return self._communicate(each, op, clock, is_waiting=True)

    def _loop(self, computation: Computation, each: Instruction, clock: Clock) -> Clock:
        (body,) = (self.module.computations[name] for name in each.called("body"))
        trips = trip_count(self.module, computation, each)
        if trips is None:
            self.unknown_loops.append(each.name)
            trips = 1
        if trips == 0:
            return clock
        first = self.walk(body, clock)
        if trips == 1:
            return first
        was_silent, self.is_silent = self.is_silent, True
        second = self.walk(body, first)
        self.is_silent = was_silent
        last = second.again(first, trips - 2)
        self._note(f"{each.name}, {trips - 1} more trips", "computing", first.now_s, last.now_s, "loop", 0)
        return last

    def _longest(self, branches: tuple[Computation, ...], clock: Clock) -> Clock:
        """The clock after the branch that takes longest, of which alone the entries stay."""
        longest, noted, waited = clock, list[Entry](), list[tuple[float, float]]()
        entries, waits = len(self.entries), len(self.waits)
        for branch in branches:
            after = self.walk(branch, clock)
            if after.now_s >= longest.now_s:
                longest, noted, waited = after, self.entries[entries:], self.waits[waits:]
            del self.entries[entries:], self.waits[waits:]
        self.entries += noted
        self.waits += waited
        return longest

    def _started(self, computation: Computation, name: str) -> str:
        """The start that a done belongs to, through updates and fusions that pass on what it gave."""
        while True:
            found = computation.by_name[name]
            if found.opcode.endswith(_UPDATE) or found.opcode == "bitcast":
                name = found.operands[0]
            elif found.opcode == "get-tuple-element":
                (index,) = found.numbers("index")
                source = computation.by_name[found.operands[0]]
                aliases = dict(_ALIAS.findall(source.attributes.get("output_to_operand_aliasing", "")))
                operand = aliases.get(str(index))
                if operand is None or self._is_start(source):
                    return source.name
                name = source.operands[int(operand)]
            else:
                return name

    def _is_start(self, source: Instruction) -> bool:
        return any(
            inner.custom_call_target == _FUSED_START
            for called in self.module.called_by(source)
            for inner in called.instructions
        )

    def _collective_within(self, fusion: Instruction) -> tuple[Computation, Instruction] | None:
        (called,) = self.module.called_by(fusion)
        if called.name not in self.fused:
            self.fused[called.name] = collective_of((called,))
        return self.fused[called.name]

    def _op(self, computation: Computation, each: Instruction) -> CollectiveOp:
        operands = computation.operands_of(each)
        arrays = [shape for operand in operands for shape in operand.shapes]
        size_bytes = sum(shape.size_bytes for shape in arrays)
        groups = replica_groups(each, self.module.num_devices)
        return CollectiveOp(each.opcode.removesuffix(_START), size_bytes, groups, len(arrays))

    def _note(self, name: str, queue: Queue, start_s: float, end_s: float, kind: str, size_bytes: int) -> None:
        if not self.is_silent and end_s > start_s:
            self.entries.append(Entry(name, queue, start_s, end_s, kind, size_bytes))
