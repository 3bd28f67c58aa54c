"""Puts the names that JAX and flax have removed since alpa was written back in place, and takes them out again.

Takes the trees `alpa_on_jax/jax`, `alpa_on_jax/jaxlib` and `alpa_on_jax/flax`, which mirror the packages that they
complete, and gives back a function that undoes everything. A file whose module does not exist any more becomes that
module; one that has `ALIAS_OF` stands for the module of that name; of any other the names in `__all__` are added to
the module that exists. `ADDED_TO_CLASSES` holds attributes for classes of JAX in the same way.

Invariant: nothing that JAX or flax has is replaced. A name that exists already is left as it is, except where the
file lists it in `WIDENED`: then JAX's own callers get from it what they got before, and alpa's old calls work too.
"""

import importlib
import pkgutil
import sys
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType

_TREES = ("jax", "jaxlib", "flax")


def install() -> Callable[[], None]:
    """Add every missing module and name; gives back what takes exactly these out again.

    If one cannot be added, those before it are taken out before the error goes on.
    """
    steps: list[Callable[[], None]] = []

    def undo() -> None:
        while steps:
            steps.pop()()

    try:
        for shim_name in _shim_names():
            _install_one(shim_name, steps)
    except BaseException:
        undo()
        raise
    return undo


def _shim_names() -> Iterator[str]:
    for tree in _TREES:
        root = f"{__package__}.{tree}"
        package = importlib.import_module(root)
        yield root
        for info in pkgutil.walk_packages(package.__path__, root + "."):
            yield info.name


def _install_one(shim_name: str, steps: list[Callable[[], None]]) -> None:
    target_name = shim_name.removeprefix(f"{__package__}.")
    shim = importlib.import_module(shim_name)
    target = _existing(target_name)
    if target is None:
        alias_of = getattr(shim, "ALIAS_OF", None)
        _add_module(target_name, shim if alias_of is None else importlib.import_module(alias_of), steps)
        return
    for cls, attributes in getattr(shim, "ADDED_TO_CLASSES", {}).items():
        for name, value in attributes.items():
            if not hasattr(cls, name):
                _set(cls, name, value, steps)
    for name in getattr(shim, "__all__", ()):
        if name in getattr(shim, "WIDENED", ()) or not _has(target, name):
            _set(target, name, getattr(shim, name), steps)


def _existing(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name == name:
            return None
        raise


def _add_module(name: str, module: ModuleType, steps: list[Callable[[], None]]) -> None:
    sys.modules[name] = module
    steps.append(lambda: sys.modules.__delitem__(name))
    parent_name, _, child = name.rpartition(".")
    parent = sys.modules[parent_name]
    if not _has(parent, child):
        _set(parent, child, module, steps)


def _has(module: ModuleType, name: str) -> bool:
    with warnings.catch_warnings():
        # Names that JAX still has but deprecates answer with a warning, which is not the user's to see.
        warnings.simplefilter("ignore", DeprecationWarning)
        return hasattr(module, name)


def _set(module: ModuleType | type, name: str, value: object, steps: list[Callable[[], None]]) -> None:
    if name in vars(module):
        old = vars(module)[name]
        steps.append(lambda: setattr(module, name, old))
    else:
        steps.append(lambda: delattr(module, name))
    setattr(module, name, value)
