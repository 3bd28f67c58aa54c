"""Frozen dataclasses as values that JSON has, and back, by the type hints of their fields.

`encode` gives dicts, lists and scalars; `decode` reads them and checks every value against its hint. Hints are `str`,
`bool`, `int` (from zero), `float` (finite), `Literal` of texts, string enums, dataclasses, `X | None` and
`tuple[X, ...]`. Invariant: `decode(type(value), encode(value)) == value`, also after JSON, and equal values are encoded
alike.

A key that names no field is ignored, and a missing one is an error, except where the field's metadata says otherwise:
`OMIT_DEFAULT` leaves a field out where it has its default, so that a value without it is written as by earlier
versions; `MAY_BE_MISSING` takes the default where an earlier version wrote none; `key(name)` writes a field under
another name.
"""

import dataclasses
import functools
import sys
from collections.abc import Mapping
from enum import StrEnum
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

MAY_BE_MISSING: Mapping[str, Any] = {"may_be_missing": True}
OMIT_DEFAULT: Mapping[str, Any] = {"may_be_missing": True, "omit_default": True}
T = TypeVar("T")


def key(name: str) -> Mapping[str, Any]:
    """The metadata of a field that is written as `name`, which is not the field's own."""
    return {"key": name}


def encode(value: Any) -> Any:
    """A value as dicts, lists and scalars that `json.dumps` takes."""
    if dataclasses.is_dataclass(value):
        fields = {each: getattr(value, each.name) for each in dataclasses.fields(value)}
        return {
            each.metadata.get("key", each.name): encode(own)
            for each, own in fields.items()
            if not (each.metadata.get("omit_default") and own == each.default)
        }
    return list(map(encode, value)) if isinstance(value, tuple) else value


def decode(of: type[T], content: Any) -> T:
    """Reads the value that `encode` gave.

    Args:
        of: The type of the value.
        content: What `encode` gave, or what `json.loads` made of it.

    Raises:
        KeyError: a field is missing.
        TypeError, ValueError: a value is not what its hint says.
    """
    return _decode(of, content)


def _decode(hint: Any, content: Any) -> Any:
    if hint in _SCALARS:
        return _SCALARS[hint](content)
    if dataclasses.is_dataclass(hint):
        return _dataclass(hint, content)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return hint(content)
    arguments = get_args(hint)
    if get_origin(hint) is tuple:
        if not isinstance(content, list):
            raise TypeError(f"{content!r} is no list")
        return tuple(_decode(arguments[0], each) for each in content)
    if get_origin(hint) is Literal:
        if content not in arguments:
            raise ValueError(f"{content!r} is none of {', '.join(arguments)}")
        return content
    (inner,) = (each for each in arguments if each is not NoneType)
    return None if content is None else _decode(inner, content)


def _dataclass(of: Any, content: Any) -> Any:
    if not isinstance(content, dict):
        raise TypeError(f"{content!r} is no object")
    values = {}
    for name, key, hint, is_required in _fields(of):
        if is_required or key in content:
            values[name] = _decode(hint, content[key])
    return of(**values)


@functools.cache
def _fields(of: Any) -> tuple[tuple[str, str, Any, bool], ...]:
    """The fields of a dataclass: name, key, hint, and whether it must be there."""
    hints = get_type_hints(of)
    return tuple(
        (each.name, each.metadata.get("key", each.name), hints[each.name], "may_be_missing" not in each.metadata)
        for each in dataclasses.fields(of)
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _int(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"{value!r} is no whole number from zero")
    return value


def _float(value: Any) -> float:
    # Compared and not converted: JSON has whole numbers that no float can hold.
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= sys.float_info.max:
        raise TypeError(f"{value!r} is no finite number")
    return float(value)


_SCALARS = {str: _text, bool: _bool, int: _int, float: _float}
