"""What a plan's program computes and communicates beyond its parts is told by the program, and corrects other plans."""

import dataclasses
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.costs import Rates, Work
from alpa_cfp.select.candidate_costs import CandidateCosts
from alpa_cfp.select.planned_program import PlannedProgram
from alpa_cfp.select.seen_programs import SeenPrograms
from unit.alpa_cfp.training_steps import two_layer_boundaries, two_layer_candidates

RATES = Rates(flops_per_s=1e9, bytes_per_s=1e8)
PLAN, OTHER = (0, 0), (1, 1)


def costs() -> CandidateCosts:
    return CandidateCosts(two_layer_candidates(), two_layer_boundaries(), RATES)


def parts(of: CandidateCosts, choices: tuple[int, ...]) -> list[Work]:
    return [of.candidates[number].work for number in of.of(choices)]


def sum_of_parts(of: CandidateCosts, choices: tuple[int, ...]) -> Work:
    own = parts(of, choices)
    collectives = tuple(each for part in own for each in part.collectives)
    return Work(sum(each.flops for each in own), sum(each.memory_bytes for each in own), collectives)


def program(work: Work | None) -> Callable[[Sequence[int]], PlannedProgram]:
    return lambda choices: PlannedProgram(len(choices), work)


def test_a_program_that_is_the_sum_of_its_parts_corrects_nothing() -> None:
    known = costs()
    seen = SeenPrograms(known, program(sum_of_parts(known, PLAN)))
    seen.look_at(PLAN)
    assert seen.beyond_s(PLAN) == 0
    assert {known.fused_share, *known.fused_s.values()} == {0.0}


@given(st.floats(-0.2, 0.2), st.floats(-0.2, 0.2))
def test_what_a_program_computes_and_writes_more_takes_longer_by_the_rates(flops: float, memory: float) -> None:
    known = costs()
    own = sum_of_parts(known, PLAN)
    more = dataclasses.replace(own, flops=(1 + flops) * own.flops, memory_bytes=(1 + memory) * own.memory_bytes)
    seen = SeenPrograms(known, program(more))
    seen.look_at(PLAN)
    expected_s = flops * own.flops / RATES.flops_per_s + memory * own.memory_bytes / RATES.bytes_per_s
    assert seen.beyond_s(PLAN) == pytest.approx(expected_s, rel=1e-6, abs=1e-12)


def test_what_a_program_saves_is_expected_of_others_too_and_most_of_those_that_share_its_candidates() -> None:
    known = costs()
    own = sum_of_parts(known, PLAN)
    seen = SeenPrograms(known, program(dataclasses.replace(own, memory_bytes=0.9 * own.memory_bytes)))
    seen.look_at(PLAN)
    numbers, computing_s = set(known.of(PLAN)), known.means.computing_s
    saved = {number: -known.beyond_s(number, s) / s for number, s in enumerate(map(float, computing_s))}
    assert min(saved.values()) > 0
    assert min(saved[number] for number in numbers) > max(saved[n] for n in saved if n not in numbers)
    assert seen.beyond_s(OTHER) == pytest.approx(-sum(saved[n] * computing_s[n] for n in known.of(OTHER)))


def test_corrections_of_a_plan_add_up_to_what_its_program_saves() -> None:
    known = costs()
    own = sum_of_parts(known, PLAN)
    seen = SeenPrograms(known, program(dataclasses.replace(own, memory_bytes=0.9 * own.memory_bytes)))
    seen.look_at(PLAN)
    told = sum(known.beyond_s(number, float(known.means.computing_s[number])) for number in known.of(PLAN))
    assert told == pytest.approx(seen.beyond_s(PLAN), rel=0.01)


def test_a_program_takes_at_least_half_of_what_its_parts_compute() -> None:
    known = costs()
    before, computing_s = known.costs(), known.means.computing_s
    known.fused_s = dict.fromkeys(range(len(known.candidates)), -1e3)
    assert [then - now for now, then in zip(known.costs(), before, strict=True)] == pytest.approx(0.5 * computing_s)
    seen = SeenPrograms(costs(), program(Work(0.0, 0.0, ())))
    seen.look_at(PLAN)
    assert seen.beyond_s(PLAN) == pytest.approx(-0.5 * sum(computing_s[number] for number in known.of(PLAN)))


def test_programs_are_compared_by_the_rates_of_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    known = costs()
    other = sum_of_parts(known, OTHER)
    more = dataclasses.replace(other, memory_bytes=2 * other.memory_bytes)
    seen = SeenPrograms(known, lambda choices: PlannedProgram(2, more if choices == OTHER else Work(0.0, 0.0, ())))
    seen.look_at(PLAN)
    monkeypatch.setattr(CandidateCosts, "rates", dataclasses.replace(RATES, bytes_per_s=1.0))
    seen.look_at(OTHER)
    assert seen.beyond_s(OTHER) == pytest.approx(other.memory_bytes / RATES.bytes_per_s)


def test_of_a_program_that_xla_partitions_nothing_is_known_before_it_is_compiled() -> None:
    known = costs()
    seen = SeenPrograms(known, program(None))
    seen.look_at(PLAN)
    assert PLAN in seen
    assert (seen.beyond_s(PLAN), seen.communication_s(PLAN)) == (0.0, known.parts_s(PLAN))
    assert OTHER not in seen
