"""Plans like a given one, and what the search does with them."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.costs import Rates, Work
from alpa_cfp.select.candidate_costs import CandidateCosts, Choices
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.select.plan_variants import of_one_kind, of_one_state_sharding
from alpa_cfp.select.planned_program import PlannedProgram
from alpa_cfp.strategies.block_strategy import StateSharding
from unit.alpa_cfp.training_steps import data_parallel, two_layer_boundaries, two_layer_candidates

BLOCKS = two_layer_candidates()
PLANS = st.tuples(*(st.integers(0, len(block.candidates) - 1) for block in BLOCKS))


def shardings(plan: Choices) -> set[StateSharding]:
    return {block.candidates[choice].strategy.state_sharding for block, choice in zip(BLOCKS, plan, strict=True)}


def factors(plan: Choices) -> list[Sequence[int | None]]:
    return [block.candidates[choice].strategy.factors for block, choice in zip(BLOCKS, plan, strict=True)]


@given(PLANS)
def test_plans_of_one_state_sharding_split_what_the_plan_splits(plan: Choices) -> None:
    assert all(factors(each) == factors(plan) for each in of_one_state_sharding(BLOCKS, plan))


@given(PLANS)
def test_plans_of_one_kind_differ_in_one_kind_each_and_are_all_there(plan: Choices) -> None:
    found = list(of_one_kind(BLOCKS, plan))
    assert all(sum(own != other for own, other in zip(plan, each, strict=True)) == 1 for each in found)
    assert len(set(found)) == len(found) == sum(len(block.candidates) - 1 for block in BLOCKS)


def test_a_plan_of_one_state_sharding_is_found_if_only_its_program_tells_that_it_is_the_fastest() -> None:
    costs = CandidateCosts(BLOCKS, two_layer_boundaries(), Rates())
    mixture = data_parallel(StateSharding.REPLICATED, StateSharding.ZERO2)
    whole = data_parallel(StateSharding.REPLICATED, StateSharding.REPLICATED)
    looked_at = list[Choices]()

    def planned(choices: Sequence[int]) -> PlannedProgram:
        """A mixture's program does as its parts do, and one of one sharding communicates nothing."""
        looked_at.append(tuple(choices))
        parts = [costs.candidates[number].work for number in costs.of(tuple(choices))]
        is_mixture = len(shardings(tuple(choices))) > 1
        moved = tuple(each for part in parts if is_mixture for each in part.collectives)
        return PlannedProgram(len(parts), Work(sum(p.flops for p in parts), sum(p.memory_bytes for p in parts), moved))

    searching = PlanSearch(costs, planned=planned)
    searching.look_at(mixture)
    searching._look_at_one_state_sharding(None, searching.predicted(mixture))
    assert whole in looked_at
    assert searching._looked_at(None)[0].choices != mixture
