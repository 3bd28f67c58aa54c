"""How a replacement gets into an alpa module: by name, only where alpa already has that name.

Each file under `alpa_on_jax/alpa/` mirrors one alpa module and has one function `apply(module)`, which the import
hook calls right after that module has executed and before any other module can copy names out of it. `apply` goes
through `replace`, so a name that alpa does not have is an error here and not a replacement that silently does nothing,
and `replacements()` is the complete list of what differs from alpa as PyPI ships it.
"""

from types import ModuleType
from typing import Any

_replaced: dict[str, list[str]] = {}


def replace(module: ModuleType, *values: Any, **named_values: Any) -> None:
    """Put `values` (functions or classes, under their own names) and `named_values` in place of what `module` has.

    Raises:
        AttributeError: `module` has no such name, so there is nothing to replace.
    """
    new = {value.__name__: value for value in values} | named_values
    for name, value in new.items():
        if not hasattr(module, name):
            raise AttributeError(f"{module.__name__} has no {name!r} to replace")
        setattr(module, name, value)
        _replaced.setdefault(module.__name__, []).append(name)


def replace_in_class(cls: type, *functions: Any, **named_values: Any) -> None:
    """Put `functions` (under their own names) and `named_values` in place of methods that `cls` defines.

    Raises:
        AttributeError: `cls` has no such attribute.
    """
    new = {function.__name__: function for function in functions} | named_values
    for name, value in new.items():
        if not hasattr(cls, name):
            raise AttributeError(f"{cls.__module__}.{cls.__qualname__} has no {name!r} to replace")
        setattr(cls, name, value)
        _replaced.setdefault(cls.__module__, []).append(f"{cls.__qualname__}.{name}")


def replacements() -> dict[str, tuple[str, ...]]:
    """Names replaced so far: alpa module name -> names, in the order in which they were replaced."""
    return {module: tuple(names) for module, names in _replaced.items()}
