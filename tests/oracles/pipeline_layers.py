"""The layers that Alpa makes of a training step, as it hands them to stage construction.

Takes a step that is to be pipelined; gives the arguments of `cluster_layers_and_slice_mesh` by name. Invariant: nothing
is compiled, and no mesh is made.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import alpa
import pytest
from alpa.pipeline_parallel import compile_executable


class _HandedOverError(Exception):
    """The layers are there; ends the compilation."""


def layers_of(
    step: Callable[..., Any], state: Any, batch: Any, donated: Sequence[int] = (0,), **options: Any
) -> dict[str, Any]:
    """What stage construction is called with for `step(state, batch)` and `PipeshardParallel(**options)`."""
    signature = inspect.signature(compile_executable.cluster_layers_and_slice_mesh)
    handed_over: dict[str, Any] = {}

    def hand_over(*args: Any, **named: Any) -> Any:
        handed_over.update(signature.bind(*args, **named).arguments)
        raise _HandedOverError

    parallel = alpa.parallelize(step, donate_argnums=donated, method=alpa.PipeshardParallel(**options))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compile_executable, "cluster_layers_and_slice_mesh", hand_over)
        with pytest.raises(_HandedOverError):
            parallel.get_executable(state, batch)
    return handed_over
