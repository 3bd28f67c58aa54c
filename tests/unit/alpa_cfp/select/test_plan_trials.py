"""Plans are compared by runs side by side, though the speed of the machine changes from round to round."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from alpa_cfp.costs import Rates
from alpa_cfp.database import Profile, utc_now
from alpa_cfp.select.candidate_costs import CandidateCosts
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.select.plan_trials import PlanTrial, PlanTrials
from alpa_cfp.select.profile_source import Samples
from alpa_cfp.spmd.module.hlo_module import HloModule
from unit.alpa_cfp.training_steps import two_layer_boundaries, two_layer_candidates, two_layer_module

NOTHING = {f"{name}_bytes": 0 for name in ("argument", "output", "aliased", "temporary")}
MEASURED = Profile(status="measured", created_at=utc_now(), samples_s=(1.0,), compile_s=0.1, **NOTHING)
FAILED = Profile(status="failed", created_at=utc_now(), failure="crashed", failure_message="it did")


class Machine:
    """Runs programs that take `seconds`, times what `speeds` says of each call; keeps all samples, as a database."""

    def __init__(self, seconds: dict[str, float], slowness: Sequence[float], failing: frozenset[str] = frozenset()):
        self._seconds, self._slowness, self._failing = seconds, list(slowness), failing
        self._samples = dict[str, tuple[float, ...]]()
        self.calls: list[list[str]] = []

    def __call__(self, modules: Sequence[HloModule], samples: Samples = None, /) -> list[Profile]:
        assert isinstance(samples, Sequence)
        slowness = self._slowness[len(self.calls)]
        self.calls.append([module.name for module in modules])
        found = []
        for module, count in zip(modules, samples, strict=True):
            name, known = module.name, self._samples.get(module.name, ())
            own = (slowness * self._seconds[name],) * (count - len(known))
            self._samples[name] = known + own
            fails = name in self._failing and len(self.calls) > 1
            found.append(FAILED if fails else replace(MEASURED, samples_s=self._samples[name]))
        return found


def trial(name: str) -> PlanTrial:
    search = PlanSearch(CandidateCosts(two_layer_candidates(), two_layer_boundaries(), Rates()))
    return PlanTrial(search.best(1, None)[0], replace(two_layer_module(), name=name), ())


def trials(machine: Machine) -> PlanTrials:
    return PlanTrials(
        PlanSearch(CandidateCosts(two_layer_candidates(), two_layer_boundaries(), Rates())), machine, samples=2
    )


def test_a_plan_of_a_later_round_is_compared_at_the_speed_of_the_first() -> None:
    machine = Machine({"first": 1.0, "later": 1.5}, [1.0, 2.0])
    timing, first, later = trials(machine), trial("first"), trial("later")
    timing.time([first])
    timing.time([later], first)
    assert machine.calls == [["first"], ["later", "first"]]
    assert timing.step_s(later) == pytest.approx(1.5)
    assert timing.step_s(first) == pytest.approx(1.0)


def test_a_plan_that_fails_in_a_later_round_leaves_the_times_of_others_as_they_are() -> None:
    machine = Machine({"first": 1.0, "later": 1.5}, [1.0, 1.0], frozenset({"first"}))
    timing, first, later = trials(machine), trial("first"), trial("later")
    timing.time([first])
    timing.time([later], first)
    assert timing.step_s(later) == pytest.approx(1.5)
