"""Calls of a loaded program by JAX's own dispatch in C++, as functions of `jax.jit` have.

Takes a function of pytrees that checks its arguments, places them and runs a program; gives a callable that does the
same, and from the second call with arguments of the same kind on goes through no Python. Invariant: of one kind are
arguments with the same structure, shapes, dtypes and shardings, so that the first call's findings hold for all.

Private interfaces, tested with jax 0.10.2, 0.11.2 and 0.12.0.1: `jaxlib._jax.pjit`, `pxla.MeshExecutableFastpathData`,
`pxla.JitGlobalCppCacheKeys`, `pxla.cc_shard_arg`, `tree_util.dispatch_registry`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax._src import tree_util
from jax._src.interpreters import pxla
from jax._src.lib import _jax
from jax.sharding import Sharding

from alpa_cfp.spmd.compile import backend


@dataclass(frozen=True, slots=True)
class Direct:
    """A way to run a program without Python.

    Attributes:
        executable: The loaded program. A call of it is all that there is to do.
        inputs: The sharding of each argument, flat. Arguments that are `jax.Array`s have it already.
        outputs: The sharding of each result, flat.
    """

    executable: Any
    inputs: Sequence[Sharding]
    outputs: Sequence[Sharding]


def dispatched(name: str, call: Callable[..., tuple[Any, Direct | None]]) -> Callable[..., Any]:
    """A function with the results of `call`; for arguments of a kind for which it gave a `Direct`, without calling it.

    Args:
        name: Its name in JAX's profiles.
        call: Gives the results, and how to compute those of all other arguments of the same kind; None if it is to be
            called each time.
    """

    def first_call(*args: Any, **kwargs: Any) -> tuple[Any, Any, bool]:
        results, direct = call(*args, **kwargs)
        return results, None if direct is None else _fast_path(direct, results), False

    registry = tree_util.dispatch_registry
    function = _jax.pjit(name, None, first_call, [], [], pxla.JitGlobalCppCacheKeys(), registry, pxla.cc_shard_arg)
    if not backend.RESULTS_ARE_PARTS:
        return function
    return lambda *args, **kwargs: jax.tree.map(backend.assembled, function(*args, **kwargs))


def _fast_path(direct: Direct, results: Any) -> Any:
    arrays, tree = tree_util.dispatch_registry.flatten(results, None)
    if not all(isinstance(array, jax.Array) for array in arrays):
        return None
    return pxla.MeshExecutableFastpathData(
        xla_executable=direct.executable,
        out_pytree_def=tree,
        in_shardings=direct.inputs,
        out_shardings=direct.outputs,
        out_avals=[array.aval for array in arrays],
        out_committed=[True] * len(arrays),
        kept_var_bitvec=[True] * len(direct.inputs),
        in_device_local_layouts=[None] * len(direct.inputs),
        const_args=[],
    )
