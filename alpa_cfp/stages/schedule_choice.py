"""Which schedule a pipeline has: how layers are cut for it, and how long a step takes by it.

Takes costs of runs of layers; gives a schedule, and the layers of its forward stages, of which mesh `i` of `n` has the
ones numbered `i`, `n + i`, ... (see `schedules`). Invariant: each layer is in one stage, and no stage is empty.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Literal

from alpa_cfp.stages.schedules import Schedule, interleaved, zero_bubble

# Schedules beside Alpa's own, and 1F1B, which is the same.
Name = Literal["1f1b", "interleaved_1f1b", "zero_bubble"]
# The layers of a stage.
Run = tuple[int, ...]
# The part of the forward pass in a stage's time: the backward pass has two products for each one of it.
_FORWARD = 1 / 3
# The part by which a step takes longer for each program beyond two that a mesh runs for a micro-batch: its start, what
# it is passed, and what it sends. By `benchmarks.pipeline_schedules`, of one model on one machine.
_PROGRAM = 0.1
# What is handed on to gradients that are computed apart, by what the activations of the stage take: cotangents of about
# as many values.
_HANDED_ON = 1.0


@dataclass(frozen=True, slots=True)
class Choice:
    """A schedule for a pipeline.

    Attributes:
        name: Its name.
        runs: The layers of each forward stage.
        schedule: The tasks of a step.
    """

    name: Name
    runs: tuple[Run, ...]
    schedule: Schedule


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Costs of runs of a model's layers on the meshes of a pipeline.

    Attributes:
        layers: The number of layers.
        micro_batches: The number of micro-batches of a step.
        cost_s: The seconds of a micro-batch, forward and backward, of the layers from the first to the last on a mesh;
            inf if unknown. Only how they compare counts.
        most_kept: Of each mesh, of how many micro-batches it may keep the activations of all its layers.
        cotangents: Of the backward pass of the layers from the first to the last the part that makes cotangents of
            their arguments, for which earlier layers wait; the rest makes gradients of parameters.
    """

    layers: int
    micro_batches: int
    cost_s: Callable[[int, int, int], float]
    most_kept: Sequence[float]
    cotangents: Callable[[int, int], float]

    @property
    def meshes(self) -> int:
        """The number of meshes."""
        return len(self.most_kept)

    def fastest(self, whole: Sequence[Run]) -> Choice:
        """Returns the schedule by which a step is fastest.

        Args:
            whole: The layers of each mesh if it has one forward stage, as it has by 1F1B.
        """
        return min(self._choices(whole), key=self.step_s)

    def fastest_interleaved(self, chunks: int | None) -> Choice | None:
        """Returns the interleaved schedule by which a step is fastest; None if there are too few layers.

        Args:
            chunks: The number of forward stages of each mesh, at least two; None for any.
        """
        possible = range(2, self.layers // self.meshes + 1) if chunks is None else (chunks,)
        choices = [choice for each in possible if (choice := self._interleaved(each)) is not None]
        return min(choices, key=self.step_s, default=None)

    def zero_bubble(self, whole: Sequence[Run]) -> Choice:
        """Returns the schedule in which gradients of parameters are computed apart."""
        return Choice("zero_bubble", tuple(whole), zero_bubble(self.meshes, self.micro_batches))

    def step_s(self, choice: Choice) -> float:
        """Returns the seconds of a step, without the update; inf where memory does not hold the activations."""
        chunks, parts = len(choice.runs) // self.meshes, choice.schedule.parts
        for mesh, most in enumerate(self.most_kept):
            if choice.schedule.kept(mesh, _HANDED_ON) > most * chunks:
                return inf
        return (1 + _PROGRAM * (parts * chunks - 2)) * self.tasks_s(choice)

    def tasks_s(self, choice: Choice) -> float:
        """Returns the seconds of a step if its programs cost nothing to start, and nothing is sent."""
        costs_s = [self.cost_s(run[0], run[-1], number % self.meshes) for number, run in enumerate(choice.runs)]
        forward_s = [_FORWARD * cost for cost in costs_s]
        backward_s = [(1 - _FORWARD) * cost for cost in reversed(costs_s)]
        if choice.schedule.parts == 2:
            return choice.schedule.step_s([*forward_s, *backward_s])
        # Nobody waits for cotangents of the first stage.
        shares = [self.cotangents(run[0], run[-1]) if run[0] > 0 else 0.0 for run in reversed(choice.runs)]
        first_s = [share * whole for share, whole in zip(shares, backward_s, strict=True)]
        last_s = [whole - first for whole, first in zip(backward_s, first_s, strict=True)]
        return choice.schedule.step_s([*forward_s, *first_s, *last_s])

    def _choices(self, whole: Sequence[Run]) -> Iterator[Choice]:
        """1F1B, then all others."""
        yield Choice("1f1b", tuple(whole), interleaved(self.meshes, 1, self.micro_batches))
        yield self.zero_bubble(whole)
        for chunks in range(2, self.layers // self.meshes + 1):
            choice = self._interleaved(chunks)
            if choice is not None:
                yield choice

    def _interleaved(self, chunks: int) -> Choice | None:
        runs = self.cut(chunks)
        if runs is None:
            return None
        return Choice("interleaved_1f1b", runs, interleaved(self.meshes, chunks, self.micro_batches))

    def cut(self, chunks: int) -> tuple[Run, ...] | None:
        """Returns runs of layers, `chunks` for each mesh, of costs as equal as can be; None if there are none."""
        # The least sum of squared costs of so many runs up to each layer, and where the last one begins.
        least, begins = [0.0, *[inf] * self.layers], []
        for number in range(self.meshes * chunks):
            following, starts = [inf] * (self.layers + 1), [0] * (self.layers + 1)
            for end in range(number + 1, self.layers + 1):
                options = (
                    (least[start] + self.cost_s(start, end - 1, number % self.meshes) ** 2, start)
                    for start in range(number, end)
                )
                following[end], starts[end] = min(options)
            least = following
            begins.append(starts)
        if least[-1] == inf:
            return None
        end, runs = self.layers, []
        for starts in reversed(begins):
            runs.append(tuple(range(starts[end], end)))
            end = starts[end]
        return tuple(reversed(runs))
