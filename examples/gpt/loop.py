"""The training loop: takes a step and what a run depends on, gives the state and the curve when it ends or is stopped.

Invariant: wherever a run is stopped and goes on, it makes the same steps on the same batches.
"""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from types import FrameType

from flax.training.train_state import TrainState
from tqdm import tqdm

from gpt.checkpoints import Checkpoints
from gpt.text import training_batch, validation_batch
from gpt.training import Curve, Settings, Step, loss_of, make_state, params_on_one_device

VALIDATED_SEQUENCES = 64
ROWS = 10


@dataclass(frozen=True)
class Run:
    """How a run ended.

    Attributes:
        state: The state after the last step.
        curve: The losses of all steps, also of those before a resumption.
        first_step_s: What the first step took in this process, with planning and compiling; None if none was made.
        step_s: What a later one took, the median; None if there was none.
        interrupted: Whether Ctrl-C ended it.
    """

    state: TrainState
    curve: Curve
    first_step_s: float | None
    step_s: float | None
    interrupted: bool


def train(
    step: Step,
    settings: Settings,
    name: str,
    checkpoints: Checkpoints | None = None,
    resume: bool = False,
    checkpoint_every: int = 100,
    stop_at: int | None = None,
) -> Run:
    """Train until `settings.steps` steps are made, or `stop_at`, or Ctrl-C is pressed; save at the end.

    Args:
        step: As `make_step` gives it.
        settings: What the run depends on.
        name: For the progress bar.
        checkpoints: Where to save; None to save nothing.
        resume: Whether to go on from the newest checkpoint.
        checkpoint_every: Steps between two checkpoints.
        stop_at: The step after which to stop.

    Raises:
        FileNotFoundError: there is no checkpoint to go on from.
        SettingsDifferError: it is of a run with other settings.
    """
    state, curve = make_state(settings), Curve()
    if resume and checkpoints is not None:
        state, curve = checkpoints.restore(state, settings)
    start, end = len(curve.losses), min(settings.steps, stop_at or settings.steps)
    times_s: list[float] = []
    with _watched() as interrupted, tqdm(desc=name, initial=start, total=end, unit="step", disable=None) as bar:
        for number in range(start, end):
            batch = training_batch(settings.seed, number, settings.batch_size, settings.size.length)
            began = time.perf_counter()
            state, loss = step(state, batch)
            curve.losses.append(float(loss))
            times_s.append(time.perf_counter() - began)
            bar.update()
            bar.set_postfix(loss=f"{curve.losses[-1]:.3f}")
            if _is_row(number + 1, settings):
                curve.validation[number + 1] = validation_loss(state, settings)
                said = f"{name}: step {number + 1}, loss {curve.losses[-1]:.4f}"
                bar.write(f"{said}, validation loss {curve.validation[number + 1]:.4f}")
            if checkpoints is not None and (number + 1) % checkpoint_every == 0:
                checkpoints.save(state, curve, settings)
            if interrupted():
                break
    if checkpoints is not None and curve.losses:
        checkpoints.save(state, curve, settings)
    first_step_s = times_s[0] if times_s else None
    step_s = median(times_s[1:]) if times_s[1:] else None
    return Run(state, curve, first_step_s, step_s, interrupted())


def validation_loss(state: TrainState, settings: Settings) -> float:
    """The loss on the held-out text, in nats a byte."""
    batch = validation_batch(VALIDATED_SEQUENCES, settings.size.length)
    return float(loss_of(state.apply_fn, params_on_one_device(state), batch))


def _is_row(step: int, settings: Settings) -> bool:
    """Whether the validation loss is looked at after this step: about ROWS times, and at the end."""
    return step % max(1, settings.steps // ROWS) == 0 or step == settings.steps


@contextmanager
def _watched() -> Iterator[Callable[[], bool]]:
    """Gives whether Ctrl-C has been pressed since; a second one ends the program as ever.

    Without this it would strike anywhere, also in a step that has used up its state and not yet given the new one.
    """
    pressed = []

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        pressed.append(number)
        signal.signal(signal.SIGINT, before)
        print("\nstopping after this step; Ctrl-C again stops at once", file=sys.stderr)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)
