"""Checkpoints of a run, with orbax.

Takes the state wherever it lies and gives it back on one device, from where each method moves it to where it wants it:
a checkpoint says nothing of the method that wrote it. Invariants: one that is interrupted while it is written is not
there; a run goes on only with the settings that it began with.
"""

from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

import jax
import orbax.checkpoint as ocp
from flax.training.train_state import TrainState

from gpt.training import Curve, Settings

KEPT = 2


class SettingsDifferError(ValueError):
    """A checkpoint is of a run with other settings."""


class Checkpoints:
    """The checkpoints in a folder, the newest KEPT of them; a context manager."""

    def __init__(self, folder: Path):
        self.folder = folder.resolve()
        # Not in the background: on a CPU a copy to the host may be the buffer itself, which the next step uses up.
        options = ocp.CheckpointManagerOptions(max_to_keep=KEPT, enable_async_checkpointing=False)
        self._manager = ocp.CheckpointManager(self.folder, options=options)

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._manager.close()

    def latest(self) -> int | None:
        """The step after which the newest was written; None without any."""
        return self._manager.latest_step()

    def save(self, state: TrainState, curve: Curve, settings: Settings) -> None:
        """Write what a run needs to go on; nothing if that is there already."""
        step = len(curve.losses)
        if self.latest() == step:
            return
        run = {"settings": asdict(settings), **asdict(curve)}
        parts = ocp.args.Composite(state=ocp.args.StandardSave(_arrays(state)), run=ocp.args.JsonSave(run))
        self._manager.save(step, args=parts)

    def restore(self, state: TrainState, settings: Settings) -> tuple[TrainState, Curve]:
        """The newest: the state, with arrays in the places of those of `state`, and what the run gave so far.

        Raises:
            FileNotFoundError: there is none.
            SettingsDifferError: it is of a run with other settings.
        """
        step = self.latest()
        if step is None:
            raise FileNotFoundError(f"there is no checkpoint in {self.folder}")
        run: Any = self._manager.restore(step, args=ocp.args.Composite(run=ocp.args.JsonRestore()))["run"]
        differing = [
            f"{name} {run['settings'].get(name)}, not {value}"
            for name, value in asdict(settings).items()
            if run["settings"].get(name) != value
        ]
        if differing:
            raise SettingsDifferError(f"the run in {self.folder} has " + "; ".join(differing))
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, _arrays(state))
        restored: Any = self._manager.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract)))
        curve = Curve(run["losses"], {int(at): loss for at, loss in run["validation"].items()})
        return state.replace(**restored["state"]), curve


def _arrays(state: TrainState) -> dict[str, Any]:
    return {"step": state.step, "params": state.params, "opt_state": state.opt_state}
