"""A step through `alpa.parallelize` on the local mesh, by CFP or by Alpa's own ILP, as Alpa's users call it."""

from collections.abc import Callable
from math import prod
from pathlib import Path
from typing import Any

import alpa
import jax

from alpa_cfp import CFPOption, CFPShardParallel
from public_steps.step import Step


def parallelized(
    method: str, mesh: str, costs: str, database: Path | None, step: Step
) -> tuple[Callable[..., Any], Callable[[], Any]]:
    """The step by the method "alpa-cfp" or "alpa-ilp", and what plans and compiles it."""
    shape = tuple(map(int, mesh.split("x")))
    shape = (1, *shape) if len(shape) == 1 else shape
    devices = jax.local_devices()[: prod(shape)]
    logical = alpa.LocalPhysicalDeviceMesh(devices).get_logical_mesh(shape)
    if method == "alpa-cfp":
        option = CFPOption(costs=costs, database=database, progress=False)  # type: ignore[arg-type]
        chosen: Any = CFPShardParallel(logical, None, option)
    else:
        chosen = alpa.ShardParallel(logical)
    parallel: Any = alpa.parallelize(
        step.function, method=chosen, batch_argnums=step.batch, donate_argnums=step.donated, static_argnums=()
    )
    return parallel, lambda: parallel.get_executable(*step.arguments)
