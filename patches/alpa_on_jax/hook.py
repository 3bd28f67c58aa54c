"""The import hook: what happens when Python imports alpa or one of its modules.

Takes a module name from the finder that `_startup` registered and gives back the spec that Python would have found
anyway, with its loader wrapped. Before alpa's first line runs, the versions are checked and the JAX and flax names
that alpa expects are put in place (`shims`). Each alpa module executes unmodified, with imports of Ray and cupy made
lazy (`lazy_ray`); right after that, and before any other module can copy names out of it, `apply(module)` of its
counterpart runs. The counterpart of `alpa.a.b` is `alpa_on_jax.alpa.a.b`, if there is such a file: there is no table.

Invariant: alpa is imported whole or not at all. If anything fails, the shims and all alpa modules are taken out again,
so that a second `import alpa` does what the first one did.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from alpa_on_jax import errors, lazy_ray, shims, versions


def find_spec(
    name: str, path: Sequence[str] | None, target: ModuleType | None, own_finder: object
) -> ModuleSpec | None:
    """The spec of alpa module `name`, with a loader that patches what it loads.

    Args:
        name, path, target: As of a meta path finder.
        own_finder: The one that asks; the others are asked for the spec.

    Raises:
        errors.AlpaMissingError: there is no alpa at all.
    """
    spec = _find_without_hook(name, path, target, own_finder)
    # A spec without a loader is a folder that happens to be called alpa, not a package.
    if name == "alpa" and (spec is None or spec.loader is None):
        raise errors.AlpaMissingError(versions.ALPA_VERSION)
    if spec is None or spec.loader is None:
        return spec
    spec.loader = _AlpaLoader(spec.loader)
    return spec


def _find_without_hook(
    name: str, path: Sequence[str] | None, target: ModuleType | None, own_finder: object
) -> ModuleSpec | None:
    for finder in sys.meta_path:
        find = None if finder is own_finder else getattr(finder, "find_spec", None)
        if find is not None and (spec := find(name, path, target)) is not None:
            return spec
    return None


def _check_not_shadowed(found: str) -> None:
    installed = str(metadata.distribution("alpa").locate_file("alpa/__init__.py"))
    if os.path.realpath(found) != os.path.realpath(installed):
        raise errors.AlpaShadowedError(found, installed)


class _AlpaLoader(Loader):
    """Wraps the loader of one alpa module; what is not overridden here (get_source, resources, ...) is the inner's."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "alpa":
            _exec_alpa(self._inner, module)
        else:
            _exec_patched(self._inner, module)


def _exec_alpa(loader: Any, module: ModuleType) -> None:
    versions.check_alpa()
    _check_not_shadowed(str(module.__file__))
    versions.check_jax()
    undo = shims.install()
    try:
        _exec_patched(loader, module)
    except BaseException:
        for name in [name for name in sys.modules if name.startswith(("alpa.", f"{__package__}.alpa."))]:
            del sys.modules[name]
        lazy_ray.forget()
        undo()
        raise


def _exec_patched(loader: Any, module: ModuleType) -> None:
    lazy_ray.make_imports_lazy(module)
    loader.exec_module(module)
    if (counterpart := _counterpart(module.__name__)) is not None:
        counterpart.apply(module)


def _counterpart(alpa_name: str) -> ModuleType | None:
    """The module of this package that has the replacements for an alpa module, if there is one."""
    name = f"{__package__}.{alpa_name}"
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        # The folder that would hold it does not exist; anything else that is missing is a real error.
        if error.name is not None and name.startswith(error.name):
            return None
        raise
    if spec is None:
        return None
    counterpart = importlib.import_module(name)
    # A package may be there only to hold its modules' counterparts.
    return None if spec.submodule_search_locations is not None and not hasattr(counterpart, "apply") else counterpart
