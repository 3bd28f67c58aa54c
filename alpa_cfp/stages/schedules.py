"""Schedules of pipelines: which micro-batch of which stage each mesh runs when, and how long a step takes by that.

Takes numbers of meshes, of stages on each and of micro-batches; gives the order of tasks of each mesh, and from seconds
of stages when each starts. Of `n` meshes and `k` forward stages, mesh `i` has forward stages `i`, `n + i`, `2n + i`,
...; backward stage `2k - 1 - s` belongs to forward stage `s`, and where gradients of parameters are computed apart,
`3k - 1 - s` has these; they are on its mesh. Invariants: each mesh runs each micro-batch of each of its stages once; no
task waits for one that waits for it.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# A micro-batch and a stage.
Task = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The tasks of a step.

    Attributes:
        forward_stages: The number of forward stages, of which there are equally many on each mesh.
        parts: The stages of a micro-batch for each forward stage: 2, or 3 with gradients of parameters apart.
        orders: The tasks of each mesh in their order.
    """

    forward_stages: int
    parts: int
    orders: tuple[tuple[Task, ...], ...]

    def start_times(self, stage_s: Sequence[float]) -> tuple[tuple[float, ...], ...] | None:
        """Returns the second in which each task starts, as soon as it can; None if tasks wait for each other.

        Args:
            stage_s: The seconds of a micro-batch of each stage.
        """
        ended: dict[Task, float] = {}
        starts: list[list[float]] = [[] for _ in self.orders]
        free_s = [0.0] * len(self.orders)
        moved = True
        while moved:
            moved = False
            for mesh, order in enumerate(self.orders):
                for task in itertools.islice(order, len(starts[mesh]), None):
                    before = self.before(task)
                    if before is not None and before not in ended:
                        break
                    start_s = max(free_s[mesh], 0.0 if before is None else ended[before])
                    starts[mesh].append(start_s)
                    ended[task] = free_s[mesh] = start_s + stage_s[task[1]]
                    moved = True
        return tuple(map(tuple, starts)) if len(ended) == sum(map(len, self.orders)) else None

    def before(self, task: Task) -> Task | None:
        """Returns the task of which this one needs the results; None for the first stage."""
        micro_batch, stage = task
        if stage == 0:
            return None
        return micro_batch, stage - (1 if stage < 2 * self.forward_stages else self.forward_stages)

    def step_s(self, stage_s: Sequence[float]) -> float:
        """Returns the seconds of a step, without what is done once a step and what sending takes; see `start_times`."""
        starts = self.start_times(stage_s)
        assert starts is not None
        return max(own[-1] + stage_s[order[-1][1]] for order, own in zip(self.orders, starts, strict=True))

    def ticks(self) -> list[list[Task | None]]:
        """Returns what each mesh does in each tick, as Alpa's schedules say it, if each task takes one tick."""
        starts = self.start_times([1.0] * self.parts * self.forward_stages)
        assert starts is not None
        found: list[list[Task | None]] = [
            [None] * len(self.orders) for _ in range(1 + max(int(own[-1]) for own in starts))
        ]
        for mesh, (order, own) in enumerate(zip(self.orders, starts, strict=True)):
            for task, start in zip(order, own, strict=True):
                found[int(start)][mesh] = task
        return found

    def kept(self, mesh: int, handed_on: float = 0.0) -> float:
        """Returns for how many micro-batches of one stage each a mesh keeps activations at once, at most.

        Args:
            mesh: The mesh.
            handed_on: What a backward pass hands on to gradients that are computed apart, by what activations take.
        """
        last = (self.parts - 1) * self.forward_stages

        def change(stage: int) -> float:
            more = handed_on if self.parts > 2 else 0.0
            return 1.0 if stage < self.forward_stages else -1.0 - more if stage >= last else more

        return max(itertools.accumulate(change(stage) for _, stage in self.orders[mesh]), default=0.0)


def interleaved(meshes: int, chunks: int, micro_batches: int) -> Schedule:
    """Returns the interleaved 1F1B schedule; with one stage a mesh, 1F1B.

    After a warm-up each mesh runs a forward and a backward task in turn, micro-batches in groups of as many as there
    are meshes, a group through all stages of a mesh before the next one. Source: Narayanan et al. 2021 (arXiv
    2104.04473), section 2.2. Where the last group is smaller than the others, the warm-up may have to be longer, and
    more activations are kept then.

    Args:
        meshes: The number of meshes.
        chunks: The number of forward stages of each mesh.
        micro_batches: The number of micro-batches.
    """
    stages = meshes * chunks
    schedules = (
        Schedule(stages, 2, tuple(_order(mesh, meshes, chunks, micro_batches, longer) for mesh in range(meshes)))
        for longer in itertools.count()
    )
    # At the latest with all forward tasks before all backward tasks none waits for one that waits for it.
    return next(schedule for schedule in schedules if schedule.start_times([1.0] * 2 * stages) is not None)


def zero_bubble(meshes: int, micro_batches: int) -> Schedule:
    """Returns a schedule in which gradients of parameters, apart from the backward pass, fill what 1F1B waits.

    After a warm-up each mesh runs a forward and a backward task in turn, as 1F1B; where one has to wait, the other, and
    where both have to, gradients of parameters. It keeps activations of no more micro-batches than there are meshes, as
    the first mesh does by 1F1B. Source: Qi et al. 2023 (arXiv 2401.10241), section 2, their ZB-H1.

    Args:
        meshes: The number of meshes, with one forward stage each.
        micro_batches: The number of micro-batches.
    """
    orders: list[list[Task]] = [[] for _ in range(meshes)]
    forward, backward, gradients = [0] * meshes, [0] * meshes, [0] * meshes
    while min(gradients) < micro_batches:
        # What is done at the beginning of this tick.
        sent, returned = tuple(forward), tuple(backward)
        for mesh in range(meshes):
            has_input = mesh == 0 or sent[mesh - 1] > sent[mesh]
            # The last mesh goes back from its own results.
            has_cotangents = sent[mesh] > returned[mesh] if mesh == meshes - 1 else returned[mesh + 1] > returned[mesh]
            goes_on = has_input and sent[mesh] < micro_batches and sent[mesh] - gradients[mesh] < meshes
            is_after_backward = bool(orders[mesh]) and orders[mesh][-1][1] >= meshes
            if goes_on and (is_after_backward or not has_cotangents):
                orders[mesh].append((sent[mesh], mesh))
                forward[mesh] += 1
            elif has_cotangents:
                orders[mesh].append((returned[mesh], 2 * meshes - 1 - mesh))
                backward[mesh] += 1
            elif gradients[mesh] < returned[mesh]:
                orders[mesh].append((gradients[mesh], 3 * meshes - 1 - mesh))
                gradients[mesh] += 1
    return Schedule(meshes, 3, tuple(map(tuple, orders)))


def _order(mesh: int, meshes: int, chunks: int, micro_batches: int, longer: int) -> tuple[Task, ...]:
    """The tasks of a mesh, if the warm-up has `longer` tasks more than it usually has."""
    stages = 2 * meshes * chunks
    runs = list(_runs(meshes, chunks, micro_batches))
    forward = [(micro_batch, chunk * meshes + mesh) for micro_batch, chunk in runs]
    backward = [(micro_batch, stages - 1 - (chunks - 1 - chunk) * meshes - mesh) for micro_batch, chunk in runs]
    later = meshes - 1 - mesh
    warm_up = min(len(runs), longer + (later if chunks == 1 else 2 * later + (chunks - 1) * meshes))
    pairs = zip(forward[warm_up:], backward, strict=False)
    rest = backward[len(runs) - warm_up :]
    return (*forward[:warm_up], *itertools.chain.from_iterable(pairs), *rest)


def _runs(meshes: int, chunks: int, micro_batches: int) -> Iterator[tuple[int, int]]:
    """The micro-batches and chunks that a mesh runs forward, in their order; backward it is the same from the end."""
    for first in range(0, micro_batches, meshes):
        group = range(first, min(first + meshes, micro_batches))
        yield from ((micro_batch, chunk) for chunk in range(chunks) for micro_batch in group)
