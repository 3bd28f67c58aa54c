"""One file for each alpa module of which names are replaced: `apply(module)` runs when that module has executed.

For `alpa` itself that is this file. alpa.model.conformer imports `alpa.mark_pipeline`, which alpa 0.2.3 no longer has,
and so cannot be imported with the JAX that alpa was written for either.
"""

from types import ModuleType
from typing import Any


def apply(module: ModuleType) -> None:
    """Give `alpa` the name that one of its own modules misses."""
    module.mark_pipeline = _mark_pipeline  # type: ignore[attr-defined]


def _mark_pipeline(*args: Any, name: str, mark_type: str) -> list[Any]:
    """Mark the start or the end of a layer; the arguments pass through."""
    from alpa.pipeline_parallel.primitive_def import pipeline_p

    if mark_type not in ("start", "end", "jvp_start", "jvp_end"):
        raise ValueError(f"Unknown mark type: {mark_type}")
    return pipeline_p.bind(*args, name=name, mark_type=mark_type)
