"""Packages that a program imports for its data, its logs or its evaluation, and that a step does not use.

Takes the names of packages or modules; afterwards they can be imported, and each name in them is a class that does
nothing. Invariant: only packages of that list are replaced, so that a model or a step that needs one of them fails
when it is used.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any


class _AbsentClass(type):
    """A class of which any attribute is such a class, for annotations, base classes and decorators."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _absent(f"{cls.__name__}.{name}")

    def __getitem__(cls, item: Any) -> Any:
        return cls

    def __iter__(cls) -> Any:
        raise TypeError(f"{cls.__name__} is not installed here: a step must not use it")


def _absent(name: str) -> Any:
    return _AbsentClass(name, (), {"__init__": lambda self, *args, **kwargs: None})


class _AbsentModule(ModuleType):
    __path__ = ()  # pyright: ignore

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _absent(f"{self.__name__}.{name}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        parts = fullname.split(".")
        if not any(".".join(parts[:length]) in self._names for length in range(1, len(parts) + 1)):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def replace(packages: Sequence[str]) -> None:
    """Let these packages be imported whether or not they are installed, without content."""
    sys.meta_path.insert(0, _Finder(frozenset(packages)))
