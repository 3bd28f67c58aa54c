"""Makes alpa's imports of Ray, and of what needs cupy, wait until they are needed: a local mesh loads neither.

Takes an alpa module that is about to execute and gives it a copy of the builtins of which `__import__` answers
`import ray` (at module level) with a stand-in. A stand-in of a module loads the real one when one of its attributes
is asked for, and then gives the real attribute. What is imported *from* such a module (`from ray.util import
ActorPool`) is a stand-in too; as soon as the real module is loaded, the real objects take its place in the alpa
modules' namespaces, before any code that could tell the difference runs: an `except RayActorError` clause is looked at
only when Ray has raised something. Imports inside functions are real imports. On a machine with a GPU, alpa.device_mesh
also imports its NCCL functions, which need cupy and are called between meshes only: they are a stand-in as well.

Invariant: an alpa module that executes with stand-ins has the same names as without. alpa.device_mesh and others call
`try_import_ray_worker()` while they execute; it reads `ray.worker`, which is answered without loading Ray.
"""

import builtins
import importlib
import sys
from types import ModuleType
from typing import Any

from alpa_on_jax import errors

LAZY_PACKAGES = ("ray",)
LAZY_MODULES = {("alpa.collective", "worker_nccl_util")}

# Modules that Ray moved since 2.1; alpa reads them as attributes of `ray`.
_MOVED = {"ray.worker": "ray._private.worker", "ray.state": "ray._private.state"}

# Alpa modules that read `numpy.int` and `numpy.float`, which were other names of the built-in types.
_WITH_OLD_NUMPY = ("alpa.collective.collective_group.nccl_util", "alpa.collective.collective_group.gloo_util")

# Every alpa module's namespace in which a stand-in of a name may stand.
_namespaces: list[dict[str, Any]] = []
# The modules that were loaded since the last of them was added, so that none has a stand-in of what they have.
_loaded: dict[str, ModuleType] = {}


def make_imports_lazy(module: ModuleType) -> None:
    """Let the imports of Ray in `module`, which has not executed yet, give stand-ins."""
    namespace = module.__dict__
    namespace["__builtins__"] = _builtins
    _namespaces.append(namespace)
    _loaded.clear()


def forget() -> None:
    """Drop what is known of alpa's modules, because importing alpa has failed."""
    _namespaces.clear()
    _loaded.clear()


def _import(
    name: str, globals: Any = None, locals: Any = None, fromlist: tuple[str, ...] | None = (), level: int = 0
) -> Any:
    at_module_level = locals is not None and locals is globals
    if level == 0 and at_module_level and name.partition(".")[0] in LAZY_PACKAGES:
        return _LazyNames(name) if fromlist else _LazyModule(name.partition(".")[0])
    if level == 0 and at_module_level and fromlist and (name, fromlist[0]) in LAZY_MODULES:
        return _LazyNames(name)
    if level == 0 and name == "numpy" and globals is not None and globals.get("__name__") in _WITH_OLD_NUMPY:
        return _OldNumpy("numpy")
    return builtins.__import__(name, globals, locals, fromlist or (), level)


_builtins = dict(vars(builtins), __import__=_import)


def _load(name: str) -> ModuleType:
    # Alpa asks for attributes of Ray hundreds of times a step.
    if name in _loaded:
        return _loaded[name]
    try:
        module = importlib.import_module(_MOVED.get(name, name))
    except ModuleNotFoundError as error:
        if error.name == name.partition(".")[0]:
            raise errors.RayMissingError(name) from error
        raise
    _settle()
    _loaded[name] = module
    return module


def _settle() -> None:
    """Put real objects in the place of all stand-ins of names, now that Ray is loaded."""
    for namespace in _namespaces:
        for key, value in list(namespace.items()):
            if type(value) is _LazyName and value._lazy_module.partition(".")[0] in LAZY_PACKAGES:
                try:
                    namespace[key] = value._lazy_resolve()
                except (errors.RayNameError, ModuleNotFoundError):
                    # The stand-in stays, and says what is missing when it is used.
                    continue


class _LazyModule(ModuleType):
    """Stand-in that `import ray` gives: its attributes are those of the real module, loaded with the first of them."""

    def __getattr__(self, attribute: str) -> Any:
        name = self.__name__
        if f"{name}.{attribute}" in _MOVED:
            return _LazyModule(f"{name}.{attribute}")
        if attribute.startswith("_real_") or (attribute.startswith("__") and attribute.endswith("__")):
            # How alpa and the inspect module probe; the answer is known without loading anything.
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        if attribute == "is_initialized" and name not in sys.modules:
            return lambda: False
        module = _load(name)
        try:
            return getattr(module, attribute)
        except AttributeError:
            return _submodule(module, attribute)


def _submodule(module: ModuleType, name: str) -> ModuleType:
    try:
        return importlib.import_module(f"{module.__name__}.{name}")
    except ModuleNotFoundError:
        raise errors.RayNameError(module.__name__, name) from None


class _LazyNames(ModuleType):
    """Stand-in for the module of `from ray.util import ActorPool`: every name is there, as a stand-in."""

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__") and attribute.endswith("__"):
            raise AttributeError(attribute)
        return _LazyName(self.__name__, attribute)


class _OldNumpy(ModuleType):
    """numpy with the names that it has removed."""

    int = int
    float = float

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module("numpy"), attribute)


class _LazyName:
    """Stands for a function, class or module of Ray until Ray is loaded."""

    def __init__(self, module: str, name: str) -> None:
        self._lazy_module = module
        self._lazy_name = name

    def _lazy_resolve(self) -> Any:
        module = _load_quietly(self._lazy_module)
        try:
            return getattr(module, self._lazy_name)
        except AttributeError:
            return _submodule(module, self._lazy_name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        _load(self._lazy_module)
        return self._lazy_resolve()(*args, **kwargs)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__") and attribute.endswith("__"):
            raise AttributeError(attribute)
        _load(self._lazy_module)
        return getattr(self._lazy_resolve(), attribute)

    def __instancecheck__(self, instance: Any) -> bool:
        # Nothing can be an object of Ray while Ray is not loaded.
        return self._lazy_module.partition(".")[0] in sys.modules and isinstance(instance, self._lazy_resolve())

    def __repr__(self) -> str:
        return f"<stand-in of {self._lazy_module}.{self._lazy_name}>"


def _load_quietly(name: str) -> ModuleType:
    return importlib.import_module(_MOVED.get(name, name))
