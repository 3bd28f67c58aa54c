"""CFP (arXiv 2504.00598): plans how a JAX program is sharded over a mesh, from measured times of its parts."""

from typing import TYPE_CHECKING

from alpa_cfp.lazily import lazily

if TYPE_CHECKING:
    from alpa_cfp.alpa.method import CFPPipeshardParallel, CFPShardParallel
    from alpa_cfp.alpa.option import CFPOption
    from alpa_cfp.alpa.target_stages import plan_stages
    from alpa_cfp.jit.autoshard import autoshard
    from alpa_cfp.jit.micro_batches import in_micro_batches
    from alpa_cfp.plan.plan import Plan
    from alpa_cfp.planner.options import PlanOptions
    from alpa_cfp.targets.target import target

__version__ = "0.1.0"
__all__ = [
    "CFPOption",
    "CFPPipeshardParallel",
    "CFPShardParallel",
    "Plan",
    "PlanOptions",
    "autoshard",
    "in_micro_batches",
    "plan_stages",
    "target",
]

# They import alpa and jax.
__getattr__ = lazily(
    __name__,
    {
        "CFPOption": "alpa_cfp.alpa.option",
        "CFPPipeshardParallel": "alpa_cfp.alpa.method",
        "CFPShardParallel": "alpa_cfp.alpa.method",
        "Plan": "alpa_cfp.plan.plan",
        "PlanOptions": "alpa_cfp.planner.options",
        "autoshard": "alpa_cfp.jit.autoshard",
        "in_micro_batches": "alpa_cfp.jit.micro_batches",
        "plan_stages": "alpa_cfp.alpa.target_stages",
        "target": "alpa_cfp.targets.target",
    },
)
