"""The text that the model learns: the modules at the top of Python's standard library, as bytes.

Takes nothing but a seed and the number of a step; gives batches as numpy arrays. Invariants: files come in alphabetical
order; a batch is a function of seed and step alone, so that a run that goes on from a checkpoint sees the batches that
it would have seen; no file is both trained on and validated with.
"""

import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

# Each so many-th file is held out for the validation loss.
HELD_OUT = 20
LEAST_BYTES = 100_000


@dataclass(frozen=True)
class Text:
    """The sources.

    Attributes:
        training: uint8[n], the files that are trained on, one after the other.
        validation: uint8[m], those that are not.
    """

    training: np.ndarray
    validation: np.ndarray


@cache
def standard_library() -> Text:
    """The sources of the Python that runs this.

    Raises:
        OSError: it has none, or too few.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = [path.read_bytes() for path in sorted(folder.glob("*.py"))]
    training = b"".join(file for i, file in enumerate(files) if (i + 1) % HELD_OUT)
    validation = b"".join(file for i, file in enumerate(files) if not (i + 1) % HELD_OUT)
    if min(len(training), HELD_OUT * len(validation)) < LEAST_BYTES:
        raise OSError(f"Python's standard library at {folder} has too few sources to learn from: {len(files)} files")
    return Text(np.frombuffer(training, np.uint8), np.frombuffer(validation, np.uint8))


def training_batch(seed: int, step: int, batch_size: int, length: int) -> dict[str, np.ndarray]:
    """The batch of a step: stretches from random places; "inputs" and "labels", int32[batch_size, length]."""
    text = standard_library().training
    starts = np.random.default_rng((seed, step)).integers(0, len(text) - length, size=batch_size)
    return _windows(text, starts, length)


def validation_batch(batch_size: int, length: int) -> dict[str, np.ndarray]:
    """Stretches of the held-out files, evenly spread, always the same ones: as `training_batch` gives them."""
    text = standard_library().validation
    return _windows(text, np.linspace(0, len(text) - length - 1, batch_size).astype(int), length)


def _windows(text: np.ndarray, starts: np.ndarray, length: int) -> dict[str, np.ndarray]:
    windows = np.stack([text[start : start + length + 1] for start in starts]).astype(np.int32)
    return {"inputs": windows[:, :-1], "labels": windows[:, 1:]}
