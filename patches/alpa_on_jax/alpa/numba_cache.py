"""Replacement in `alpa.util`: what numba has compiled of alpa's dynamic programmes is kept for later processes.

That of stages takes numba 2.5 s to compile, which is most of the time that alpa itself needs to choose the stages of a
small pipeline. Numba keeps its files beside alpa's own, or where NUMBA_CACHE_DIR says; it compiles anew if the file,
the processor or numba has changed. The programme of layers has a model's numbers compiled into it, so that a file
would be kept for each model: it is not.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from alpa_on_jax.replacing import replace


def apply(module: ModuleType) -> None:
    """Wrap `maybe_numba_jit`."""
    original = module.maybe_numba_jit

    def maybe_numba_jit(func: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator to mark a function as numba jitted if numba is available."""
        jitted = original(func)
        if func.__closure__ is None:
            for cell in jitted.__closure__ or ():
                if hasattr(cell.cell_contents, "enable_caching"):
                    _keep_compiled(cell.cell_contents)
        return jitted

    replace(module, maybe_numba_jit)


def _keep_compiled(dispatcher: Any) -> None:
    try:
        dispatcher.enable_caching()
    except RuntimeError:
        # There is no directory that may be written: each process compiles.
        return
