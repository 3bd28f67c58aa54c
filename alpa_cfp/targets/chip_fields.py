"""The fields of a chip's file, checked as they are read.

Takes a table of a TOML file; gives its values. Invariant: a field that is missing, wrong or means nothing is an error
that names the file, the field and its value.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from alpa_cfp.targets.errors import TargetError

_SHAPE = re.compile(r"[1-9]\d*(x[1-9]\d*)*")


def sizes_of(text: str) -> tuple[int, ...] | None:
    """The sizes in "2x4"; None if the text is no such thing."""
    return tuple(map(int, text.split("x"))) if _SHAPE.fullmatch(text) else None


class Fields:
    """A table of a chip's file, whose fields are checked as they are read.

    A table of which `end` was called has no other fields: a misspelt one is an error and not ignored.

    Args:
        values: The table.
        path: The file, for errors.
        name: The table's name, with the names of those that it is in; empty for the whole file.
    """

    def __init__(self, values: Mapping[str, Any], path: Path, name: str = "") -> None:
        self._values, self._path, self._name = values, path, name
        self._read: list[str] = []

    def __contains__(self, field: str) -> bool:
        return field in self._values

    def table(self, field: str, rule: str) -> "Fields":
        """A table in this one."""
        value = self._value(field, f"it is a table: {rule}")
        if not isinstance(value, Mapping):
            raise self._wrong(field, value, f"it is a table: {rule}")
        return Fields(value, self._path, self._full(field))

    def text(self, field: str, rule: str) -> str:
        """A text that is not empty."""
        value = self._value(field, f"it is a text: {rule}")
        if not isinstance(value, str) or not value.strip():
            raise self._wrong(field, value, f"it is a text: {rule}")
        return value

    def texts(self, field: str, rule: str) -> tuple[str, ...]:
        """A list of texts, one at least."""
        value = self._value(field, f"it is a list of texts: {rule}")
        if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
            raise self._wrong(field, value, f"it is a list of texts: {rule}")
        return tuple(value)

    def matching(self, field: str, pattern: str, rule: str) -> str:
        """A text of a given form."""
        value = self.text(field, rule)
        if not re.fullmatch(pattern, value):
            raise self._wrong(field, value, rule)
        return value

    def one_of(self, field: str, choices: Sequence[str]) -> str:
        """One of a few texts."""
        rule = f"it is one of {', '.join(choices)}"
        value = self._value(field, rule)
        if value not in choices:
            raise self._wrong(field, value, rule)
        return value

    def truth(self, field: str) -> bool:
        """True or false."""
        value = self._value(field, "it is true or false")
        if not isinstance(value, bool):
            raise self._wrong(field, value, "it is true or false")
        return value

    def number(self, field: str) -> float:
        """A positive number."""
        rule = "it is a number above 0, in the unit of its name"
        value = self._value(field, rule)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise self._wrong(field, value, rule)
        return float(value)

    def whole(self, field: str, most: int | None = None) -> int:
        """A whole number from 1."""
        rule = "it is a whole number from 1" + ("" if most is None else f" to {most}")
        value = self._value(field, rule)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1 or (most is not None and value > most):
            raise self._wrong(field, value, rule)
        return value

    def numbers(self, names: Sequence[str], needed: str) -> dict[str, float]:
        """Positive numbers under some of `names`, of which `needed` is there; the table has nothing else."""
        if needed not in self:
            self.number(needed)
        found = {name: self.number(name) for name in names if name in self}
        self._refuse_others(names)
        return found

    def shape(self, field: str, dims: int) -> tuple[int, ...]:
        """The sizes of `dims` dims, as "2x4"."""
        rule = f"it is a text with {dims} sizes, as {'x'.join('2' * dims)!r}"
        value = self._value(field, rule)
        sizes = sizes_of(value) if isinstance(value, str) else None
        if sizes is None or len(sizes) != dims:
            raise self._wrong(field, value, rule)
        return sizes

    def shapes(self, field: str, dims: int) -> tuple[tuple[int, ...], ...]:
        """A list of such sizes, one at least."""
        rule = f"it is a list of texts with {dims} sizes each, as {'x'.join('2' * dims)!r}"
        value = self._value(field, rule)
        found = [sizes_of(each) if isinstance(each, str) else None for each in value] if isinstance(value, list) else []
        shapes = tuple(sizes for sizes in found if sizes is not None and len(sizes) == dims)
        if not found or len(shapes) != len(found):
            raise self._wrong(field, value, rule)
        return shapes

    def end(self) -> None:
        """Refuse a field that was not read."""
        self._refuse_others(self._read)

    def _refuse_others(self, known: Sequence[str]) -> None:
        unknown = next((each for each in self._values if each not in known), None)
        if unknown is not None:
            raise TargetError.unknown_field(self._path, self._full(unknown), known)

    def _full(self, field: str) -> str:
        return f"{self._name}.{field}" if self._name else field

    def _value(self, field: str, rule: str) -> Any:
        if field not in self._values:
            raise TargetError.missing_field(self._path, self._full(field), rule)
        self._read.append(field)
        return self._values[field]

    def _wrong(self, field: str, value: object, rule: str) -> TargetError:
        return TargetError.wrong_field(self._path, self._full(field), value, rule)
