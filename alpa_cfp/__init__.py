"""CFP: Alpa's intra-operator pass, planned from profiled parts of a program instead of a symbolic cost model."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alpa_cfp.method import CFPPipeshardParallel, CFPShardParallel
    from alpa_cfp.option import CFPOption
    from alpa_cfp.plain.planning import autoshard
    from alpa_cfp.plan import Plan

__version__ = "0.1.0"
__all__ = ["CFPOption", "CFPPipeshardParallel", "CFPShardParallel", "Plan", "autoshard"]

# Imported when they are asked for: they import alpa and jax.
_MODULES = {
    "CFPOption": "alpa_cfp.option",
    "CFPPipeshardParallel": "alpa_cfp.method",
    "CFPShardParallel": "alpa_cfp.method",
    "Plan": "alpa_cfp.plan",
    "autoshard": "alpa_cfp.plain.planning",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
