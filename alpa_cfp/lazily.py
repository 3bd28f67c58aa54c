"""Lazy imports, for names whose modules take long to import or depend on the importing module."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def call(module: str, name: str, *arguments: Any) -> Any:
    """Imports a module and calls one of its functions; the module may depend on that of the caller."""
    return getattr(importlib.import_module(module), name)(*arguments)


def lazily(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package (PEP 562) that imports its names on first use.

    Args:
        package: The name of the package.
        modules: For each public name its module.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name]), name)

    return get
