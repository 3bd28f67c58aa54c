"""CFP: Alpa's intra-operator pass, planned from profiled parts of a program instead of a symbolic cost model."""

from typing import TYPE_CHECKING

from alpa_cfp.lazily import lazily

if TYPE_CHECKING:
    from alpa_cfp.method import CFPPipeshardParallel, CFPShardParallel
    from alpa_cfp.option import CFPOption
    from alpa_cfp.plain.planning import autoshard
    from alpa_cfp.plan import Plan

__version__ = "0.1.0"
__all__ = ["CFPOption", "CFPPipeshardParallel", "CFPShardParallel", "Plan", "autoshard"]

# They import alpa and jax.
__getattr__ = lazily(
    __name__,
    {
        "CFPOption": "alpa_cfp.option",
        "CFPPipeshardParallel": "alpa_cfp.method",
        "CFPShardParallel": "alpa_cfp.method",
        "Plan": "alpa_cfp.plan",
        "autoshard": "alpa_cfp.plain.planning",
    },
)
