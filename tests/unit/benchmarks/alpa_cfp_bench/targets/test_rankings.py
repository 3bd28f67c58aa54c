"""Orders of methods, and whether they change where links or chips are faster or slower than modelled."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp import target
from alpa_cfp.targets.modelled_program import timeline_of
from alpa_cfp.targets.topology import Compiled
from alpa_cfp_bench.targets.rankings import (
    TIE,
    Factors,
    behind,
    geometric_mean,
    order_of,
    rankings,
    scaled_s,
    steps_of,
    swaps,
)
from benchmarks import targets
from unit.benchmarks.alpa_cfp_bench.targets.target_cases import row

H100 = target("h100:1x8")
# One product, beside which all devices add their numbers up.
SCHEDULED = """HloModule step, is_scheduled=true, num_partitions=8, replica_count=1

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

ENTRY %main (x: f32[4096,4096], y: f32[4096,4096], z: f32[9000000]) -> (f32[4096,4096], f32[9000000]) {
  %x = f32[4096,4096]{1,0} parameter(0)
  %y = f32[4096,4096]{1,0} parameter(1)
  %z = f32[9000000]{0} parameter(2)
  %start = f32[9000000]{0} all-reduce-start(%z), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add
  %product = f32[4096,4096]{1,0} dot(%x, %y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %done = f32[9000000]{0} all-reduce-done(%start)
  ROOT %both = (f32[4096,4096]{1,0}, f32[9000000]{0}) tuple(%product, %done)
}
"""
COMPILED = Compiled(SCHEDULED, 0, 0, 0, 0, 0.0)

factors = st.floats(0.1, 10.0)
some_steps = st.dictionaries(st.sampled_from("abcdef"), st.floats(1e-3, 10.0), min_size=1)


def test_with_factors_of_one_a_program_takes_what_the_model_says() -> None:
    assert scaled_s([COMPILED], H100, Factors()) == pytest.approx(timeline_of(COMPILED, H100, 8).step_s)


@given(factors)
def test_if_all_takes_so_many_times_as_long_so_does_the_step(factor: float) -> None:
    step_s = scaled_s([COMPILED, COMPILED], H100, Factors(factor, factor))
    assert step_s == pytest.approx(2 * factor * scaled_s([COMPILED], H100, Factors()))


@given(factors, factors)
def test_what_is_hidden_counts_once_it_takes_longer_than_what_hides_it(computing: float, communicating: float) -> None:
    line = timeline_of(COMPILED, H100, 8)
    longest = max(computing * line.computing_s, communicating * line.communicating_s)
    assert scaled_s([COMPILED], H100, Factors(computing, communicating)) == pytest.approx(longest)


@given(some_steps, st.floats(0.1, 10.0))
def test_no_order_changes_where_all_methods_change_alike(steps: dict[str, float], factor: float) -> None:
    assert swaps(steps, {name: factor * each for name, each in steps.items()}) == []


@given(some_steps, st.randoms(use_true_random=False))
def test_what_passes_another_one_was_slower_and_is_faster(steps: dict[str, float], random: Any) -> None:
    times = list(steps.values())
    random.shuffle(times)
    after = dict(zip(steps, times, strict=True))
    for first, second in swaps(steps, after):
        assert steps[first] * (1 + TIE) < steps[second]
        assert after[second] * (1 + TIE) < after[first]


@given(some_steps)
def test_an_order_is_by_the_step(steps: dict[str, float]) -> None:
    times = [steps[name] for name in order_of(steps)]
    assert times == sorted(times)


def test_methods_within_a_tie_do_not_pass_each_other() -> None:
    assert swaps({"a": 1.0, "b": 1.005}, {"a": 1.005, "b": 1.0}) == []


def test_what_does_not_fit_or_was_not_compiled_has_no_place() -> None:
    rows = [row("a", 1.0, fits=False), row("b", 2.0), {"method": "c", "fits": False, "failure": "it crashed"}]
    assert steps_of(rows) == {"b": 2.0}


def test_a_method_is_held_against_the_best_other_one() -> None:
    assert behind({"CFP": 1.1, "a": 1.0, "b": 2.0}, "CFP") == ("a", pytest.approx(1.1))
    assert behind({"a": 1.0}, "CFP") is None
    assert behind({"CFP": 1.0}, "CFP") is None


def test_rankings_name_the_scenario_in_which_another_method_is_first() -> None:
    rows = [row("a", 1.0, communication_25_dearer=1.3), row("b", 1.1)]
    assert rankings(rows) == "a < b; with communication 25% dearer b passes a."


def test_rankings_say_that_nothing_changes() -> None:
    assert rankings([row("b", 2.0), row("a", 1.0)]) == "a < b, in all scenarios."


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=10))
def test_the_geometric_mean_of_inverses_is_the_inverse(ratios: list[float]) -> None:
    assert geometric_mean([1 / each for each in ratios]) == pytest.approx(1 / geometric_mean(ratios))


def test_the_verdict_tells_where_cfp_is_behind_and_its_mean_to_the_ilp() -> None:
    said = targets.verdict([row("CFP", 1.1), row("Alpa's ILP", 2.2), row("ZeRO-2", 1.0)])
    assert "CFP's step takes 0.500 times as long as that of Alpa's ILP" in said
    assert "CFP takes 1.100 times as long as ZeRO-2" in said


def test_methods_within_a_tie_are_named_as_such() -> None:
    assert rankings([row("a", 1.0), row("b", 1.005), row("c", 2.0)]) == "a ~ b < c, in all scenarios."
