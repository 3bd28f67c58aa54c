"""A `CFPOption` that passes each plan of a program that is run to a callback.

Takes an option and a callback. Invariant: plans of candidate stages are not passed on; those of a pipeline's stages
come in the order of the stages.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from alpa_cfp import CFPOption, Plan


def _ignore(plan: Plan) -> None:
    del plan


@dataclass
class OptionWithCallback(CFPOption):
    """See `with_callback`.

    Attributes:
        on_plan: Is called with each plan of a program that is run, in the process that plans.
    """

    on_plan: Callable[[Plan], object] = field(default=_ignore, compare=False, repr=False)

    def plan_module(self, module: Any, request: Any) -> Plan:
        """As `CFPOption.plan_module`; the callback gets the plan."""
        plan = super().plan_module(module, request)
        if not self.plans_candidates:
            self.on_plan(plan)
        return plan

    def __getstate__(self) -> dict[str, Any]:
        """The state for other processes, which have no use for the callback."""
        return {**super().__getstate__(), "on_plan": _ignore}


def with_callback(option: CFPOption, on_plan: Callable[[Plan], object]) -> OptionWithCallback:
    """Return `option` with a callback."""
    fields = {each.name: getattr(option, each.name) for each in dataclasses.fields(CFPOption)}
    return OptionWithCallback(**fields, on_plan=on_plan)
