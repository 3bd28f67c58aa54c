"""Plans held against the serial run: takes a model or a function, a mesh and an option, gives back what ran.

Whatever a plan is, alpa runs the step once, and everything that it gives back must equal what one device computes
(serial.py). Invariant: nothing here knows what plan is made.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import alpa
import jax
import jax.numpy as jnp
import numpy as np
from alpa import AutoShardingOption
from alpa.parallel_method import ParallelMethod

from alpa_cfp import CFPOption, CFPShardParallel
from alpa_cfp.analysis.blocks import find_blocks
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.apply.annotate import annotate
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding, strategies_of
from alpa_cfp_bench.workloads.meshes import logical_mesh
from alpa_cfp_bench.workloads.model import Model, train_step
from alpa_cfp_bench.workloads.models import build
from alpa_cfp_bench.workloads.sizes import TINY, Size
from alpa_on_jax.xla_extension.planner import PlanRequest
from integration.serial import assert_equal_up_to_rounding, expected_steps, run_serially, serial_steps

# Not for changing: a test that looks at `plans` makes an option of its own.
ESTIMATE = CFPOption(costs="estimate", progress=False)


@dataclass
class DrawnPlan(AutoShardingOption):
    """A strategy for each block, drawn at random: in the place of a `CFPOption`.

    Attributes:
        seed: Of what is drawn.
        kept: Whether it is drawn, too, where the state of each block is kept; otherwise it is where it is used.
        sums: Whether only strategies are drawn that split sums over devices, where a block has some.
    """

    seed: int = 0
    kept: bool = False
    sums: bool = False

    def annotate_module(self, module: HloModule, request: PlanRequest) -> None:
        """Write the drawn strategies into `module`."""
        shape = tuple(request.logical_mesh.shape)
        blocks = find_blocks(read_graph(module.bytecode))
        drawn = random.Random(self.seed)
        strategies = [
            drawn.choice(self._allowed(strategies_of(block, shape, split_sums=self.sums))) for block in blocks.blocks
        ]
        if self.kept:
            strategies = [
                replace(strategy, state_sharding=drawn.choice(list(StateSharding))) for strategy in strategies
            ]
        annotate(module, blocks, LogicalMesh(shape), strategies)

    def _allowed(self, strategies: Sequence[BlockStrategy]) -> Sequence[BlockStrategy]:
        return [each for each in strategies if self.sums and each.sums_along is not None] or strategies


def method(mesh: str, option: AutoShardingOption = ESTIMATE, num_micro_batches: int | None = None) -> ParallelMethod:
    """What `alpa.parallelize` takes to plan with `option` on the mesh called `mesh`."""
    if isinstance(option, CFPOption):
        return CFPShardParallel(logical_mesh(mesh), num_micro_batches, option)
    return alpa.ShardParallel(logical_mesh(mesh), num_micro_batches, option)


def planned(
    model: str | Model,
    mesh: str,
    num_micro_batches: int | None = None,
    option: AutoShardingOption = ESTIMATE,
    check: Callable[[Any, Any], None] = assert_equal_up_to_rounding,
    size: Size = TINY,
) -> Any:
    """A training step that was planned with `option` and run once, and gave what the serial one gives.

    Args:
        model: A model or its name; the serial run of one with a name is computed once a process.
        mesh: The name of the mesh.
        num_micro_batches: None without accumulation.
        option: A `CFPOption` or a `DrawnPlan`.
        check: (actual, expected) -> None, or AssertionError; called for state, metrics and gradients.
        size: Of a model that is given by its name.
    """
    if isinstance(model, str):
        built, wanted = build(model, size), expected_steps(model, num_micro_batches, 1, size)[0]
    else:
        built, wanted = model, serial_steps(model, num_micro_batches, 1)[0]
    step: Any = alpa.parallelize(train_step(built, alpa.value_and_grad), method=method(mesh, option, num_micro_batches))
    # A step donates its state, and the model's own is needed again.
    actual = step(jax.tree.map(jnp.copy, built.state), built.batch)
    for values, expected in zip(actual, (wanted.state, wanted.metrics, wanted.grads), strict=True):
        check(jax.tree.map(np.asarray, values), expected)
    return step


def planned_function(
    function: Callable[..., Any],
    *args: Any,
    mesh: str,
    option: AutoShardingOption = ESTIMATE,
    batch_argnums: Sequence[int] = (),
    donate_argnums: Sequence[int] = (),
    check: Callable[[Any, Any], None] = assert_equal_up_to_rounding,
) -> Any:
    """`function` planned with `option`, run once on `args`, and equal to the serial run; the arguments are kept."""
    expected = run_serially(function, *args)
    parallel: Any = alpa.parallelize(
        function, method=method(mesh, option), batch_argnums=batch_argnums, donate_argnums=donate_argnums
    )
    actual = parallel(*jax.tree.map(jnp.copy, args))
    check(jax.tree.map(np.asarray, actual), expected)
    return parallel
