"""Names of a package that are imported when they are asked for, because what they need takes long to import.

Takes where each name is; gives the package's `__getattr__` (PEP 562).
"""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def call(module: str, name: str, *arguments: Any) -> Any:
    """What a function gives of a module that is imported now: one that builds on the caller's."""
    return getattr(importlib.import_module(module), name)(*arguments)


def lazily(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package.

    Args:
        package: Its name.
        modules: For each name the module that it is imported from.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name]), name)

    return get
