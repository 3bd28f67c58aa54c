"""The timeline of a step in few entries: what is short is merged with its neighbours.

Takes the timeline of a scheduled program (`targets.timeline`); gives one that can be kept (`database.timelines`).
Invariants: a timeline of at most `MOST_ENTRIES` loses nothing but names; of others entries of one queue are merged that
follow each other, first those of one kind, the shortest first; counts, bytes, busy and exposed nanoseconds of a queue
add up to the same, and totals are those of the step.
"""

from collections.abc import Callable, Sequence

from alpa_cfp.database.timelines import MOST_ENTRIES, MOST_LETTERS, SEVERAL, StepTimeline, TimelineEntry, totals_of
from alpa_cfp.targets.timeline import Entry, Timeline

_Lanes = Sequence[Sequence[TimelineEntry]]


def compact(timeline: Timeline, most: int = MOST_ENTRIES) -> StepTimeline:
    """A timeline in at most `most` entries.

    Args:
        timeline: The timeline.
        most: At least one for each queue.
    """
    entries = [_whole_ns(each) for each in timeline.entries]
    queues = dict.fromkeys(each.queue for each in entries)
    lanes = _fewer([[each for each in entries if each.queue == queue] for queue in queues], most)
    kept = sorted((each for lane in lanes for each in lane), key=lambda each: (each.start_ns, each.end_ns, each.queue))
    return StepTimeline(
        timeline.step_s,
        timeline.computing_s,
        timeline.communicating_s,
        timeline.hidden_s,
        timeline.copies_s,
        tuple(kept),
        totals_of(entries),
        len(timeline.unknown_loops),
    )


def _whole_ns(each: Entry) -> TimelineEntry:
    # Rounding keeps the order, so that nothing overlaps that did not before.
    start_ns, end_ns = round(1e9 * each.start_s), round(1e9 * each.end_s)
    exposed_ns = min(round(1e9 * each.exposed_s), end_ns - start_ns)
    kind = each.kind[:MOST_LETTERS]
    return TimelineEntry(each.queue, kind, start_ns, end_ns, each.size_bytes, exposed_ns=exposed_ns)


def _fewer(lanes: _Lanes, most: int) -> _Lanes:
    """Merges neighbours that are together no longer than a limit, which grows until there are few enough."""
    end_ns = max((lane[-1].end_ns for lane in lanes), default=0)
    limit_ns = max(end_ns // (4 * most), 1)
    while sum(map(len, lanes)) > most:
        for is_alike in (_of_one_kind, _any):
            lanes = [_merged(lane, limit_ns, is_alike) for lane in lanes]
            if sum(map(len, lanes)) <= most:
                break
        limit_ns *= 2
    return lanes


def _merged(
    lane: Sequence[TimelineEntry], limit_ns: int, is_alike: Callable[[TimelineEntry, TimelineEntry], bool]
) -> Sequence[TimelineEntry]:
    found = list(lane[:1])
    for each in lane[1:]:
        before = found[-1]
        if is_alike(before, each) and each.end_ns - before.start_ns <= limit_ns:
            found[-1] = _together(before, each)
        else:
            found.append(each)
    return found


def _of_one_kind(first: TimelineEntry, second: TimelineEntry) -> bool:
    return first.kind == second.kind


def _any(first: TimelineEntry, second: TimelineEntry) -> bool:
    del first, second
    return True


def _together(first: TimelineEntry, second: TimelineEntry) -> TimelineEntry:
    return TimelineEntry(
        first.queue,
        first.kind if first.kind == second.kind else SEVERAL,
        first.start_ns,
        second.end_ns,
        first.size_bytes + second.size_bytes,
        first.count + second.count,
        first.idle_ns + second.idle_ns + second.start_ns - first.end_ns,
        first.exposed_ns + second.exposed_ns,
    )
