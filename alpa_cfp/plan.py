"""A plan: what CFP decided for one program on one mesh, as a value that can be kept and used again.

Takes what the search found; gives JSON and back. Invariant: equal plans are equal texts, byte for byte, and a text that
is read back is an equal plan.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from alpa_cfp.errors import PlanError
from alpa_cfp.search import MemoryUse
from alpa_cfp.strategies import BlockStrategy

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan.

    Attributes:
        program: Digest of the program that it is for.
        mesh_shape: The logical mesh that it is for.
        strategies: One for each block, in program order.
        predicted_s: What a step was predicted to take, in seconds.
        memory: What a device was predicted to need, in bytes.
        costs: Where the prediction came from: "measure" or "estimate".
    """

    program: str
    mesh_shape: tuple[int, ...]
    strategies: tuple[BlockStrategy, ...]
    predicted_s: float
    memory: MemoryUse
    costs: str

    def to_json(self) -> str:
        """The plan as text."""
        content = {
            "format": FORMAT,
            "program": self.program,
            "mesh_shape": list(self.mesh_shape),
            "strategies": [list(strategy.factors) for strategy in self.strategies],
            "predicted_s": self.predicted_s,
            "memory": asdict(self.memory),
            "costs": self.costs,
        }
        return json.dumps(content, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str, source: str = "the text") -> "Plan":
        """The plan that `to_json` gave.

        Args:
            text: What `to_json` gave.
            source: Where it comes from, for errors.

        Raises:
            PlanError: the text is no plan of this format.
        """
        try:
            content = json.loads(text)
        except ValueError as error:
            raise PlanError.unreadable(source, str(error)) from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise PlanError.unreadable(source, f"it has no format {FORMAT}")
        try:
            return cls(
                program=_text(content["program"]),
                mesh_shape=tuple(map(_whole, content["mesh_shape"])),
                strategies=tuple(BlockStrategy(tuple(map(_factor, each))) for each in content["strategies"]),
                predicted_s=float(content["predicted_s"]),
                memory=MemoryUse(**{name: _whole(size) for name, size in content["memory"].items()}),
                costs=_text(content["costs"]),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise PlanError.unreadable(source, f"{type(error).__name__}: {error}") from error

    def save(self, path: Path | str) -> None:
        """Write the plan into a file."""
        Path(path).write_text(self.to_json())

    @classmethod
    def load(cls, path: Path | str) -> "Plan":
        """The plan in a file.

        Raises:
            PlanError: there is no plan of this format in it.
            OSError: it cannot be read.
        """
        return cls.from_json(Path(path).read_text(), str(path))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no whole number")
    return value


def _factor(value: Any) -> int | None:
    return None if value is None else _whole(value)
