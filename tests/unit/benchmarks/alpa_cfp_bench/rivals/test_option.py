"""The options of rivals: what they measure, and that they decide the same each time."""

from pathlib import Path
from typing import Any

import pytest

from alpa_cfp import PlanOptions
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.planner.request import LocalDevices, PlanRequest
from alpa_cfp.planner.session import Session
from alpa_cfp.profiling import TimeBudget
from alpa_cfp.search import SearchProblem, Variable, search
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp_bench.rivals.option import FlexFlowOption, RivalOption, TofuOption, best_measured, costs_of
from alpa_cfp_bench.rivals.space import RivalPlan, Space, problem_of
from unit.alpa_cfp.training_steps import two_layer_module

pytestmark = pytest.mark.slow


class MeasuredOnDemand:
    """Costs of three choices of one variable, the first of which turn out to take long when they are measured."""

    def __init__(self, limit_s: float) -> None:
        self.times, self.asked, self.budget = [1.0, 2.0, 3.0], list[list[int]](), TimeBudget(limit_s)

    def unmeasured(self, choices: Any) -> set[int]:
        return {choices[0]} - {number for numbers in self.asked for number in numbers}

    def measure(self, numbers: Any) -> None:
        self.asked.append(list(numbers))
        for number in numbers:
            self.times[number] += 2.5 * (number < 2)

    def problem(self) -> SearchProblem:
        return SearchProblem((Variable("block 0", self.times),))


def fastest(problem: SearchProblem) -> Any:
    return problem.solution([int(problem.variables[0].time_s.argmin())])


def test_a_plan_is_found_again_until_all_of_its_candidates_are_measured() -> None:
    costs: Any = MeasuredOnDemand(float("inf"))
    assert best_measured(costs, costs.problem, fastest).choices == (2,)
    assert costs.asked == [[0], [1], [2]]


def test_after_the_time_for_planning_nothing_is_measured() -> None:
    costs: Any = MeasuredOnDemand(0.0)
    assert best_measured(costs, costs.problem, fastest).choices == (0,)
    assert costs.asked == []


def plan_of(option: RivalOption, *shape: int) -> RivalPlan:
    with Session.open(option.options) as session:
        request = PlanRequest(LogicalMesh(shape), LocalDevices((None,) * 8, shape))
        return option.plan(AnalysedProgram(two_layer_module()), request, session)


@pytest.mark.parametrize("kind", [FlexFlowOption, TofuOption])
@pytest.mark.parametrize("whose", ["own", "ours"])
def test_a_rival_makes_the_same_plan_each_time(kind: type[Any], whose: str, tmp_path: Path) -> None:
    options = PlanOptions(costs="estimate", database=tmp_path / "d.sqlite", seed=7)
    option = kind(options=options, whose=whose)
    once, again = (plan_of(option, 2, 4) for _ in range(2))
    assert once == again
    assert len(once.strategies) == 2


def test_with_our_costs_the_chain_finds_what_the_exact_search_does_and_halvings_no_more(tmp_path: Path) -> None:
    options, mesh = PlanOptions(costs="estimate", database=tmp_path / "d.sqlite"), LogicalMesh((2, 4))
    space = Space.of(AnalysedProgram(two_layer_module()), mesh)
    best = search(problem_of(space.costs(*costs_of(mesh, None), None)), None)
    assert plan_of(FlexFlowOption(options=options, whose="ours"), 2, 4).cost == pytest.approx(best.time_s)
    assert plan_of(TofuOption(options=options, whose="ours"), 2, 4).cost >= best.time_s * (1 - 1e-9)


def test_the_mesh_of_one_axis_is_planned_on_one_that_refines_it(tmp_path: Path) -> None:
    options = PlanOptions(costs="estimate", database=tmp_path / "d.sqlite", logical_mesh_shapes="all")
    assert plan_of(FlexFlowOption(options=options), 1, 8).mesh == LogicalMesh((2, 4))
    assert plan_of(TofuOption(options=options), 1, 8).mesh == LogicalMesh((2, 2, 2))
