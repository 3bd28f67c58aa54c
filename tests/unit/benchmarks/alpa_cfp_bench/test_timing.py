"""Ratios of times: what they are of, and what their intervals say."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp_bench.timing import Samples, pool, ratio

pytestmark = pytest.mark.slow

ROUNDS = 15


def drawn(seed: int, seconds: Sequence[float], of_copy: float, of_round: float) -> list[Samples]:
    """For each function four copies that differ, in rounds that differ for all of them."""
    random = np.random.default_rng(seed)
    rounds = random.lognormal(0, of_round, ROUNDS)
    functions = []
    for each in seconds:
        copies = [each * random.lognormal(0, of_copy) * rounds * random.lognormal(0, 0.01, ROUNDS) for _ in range(4)]
        functions.append(pool([Samples(tuple(copy.tolist()), tuple(copy.tolist())) for copy in copies]))
    return functions


def test_the_interval_of_equal_programs_covers_1_as_often_as_it_says() -> None:
    found = [ratio(*drawn(seed, (1.0, 1.0), of_copy=0.05, of_round=0.2)) for seed in range(400)]
    covered = sum(each.paired_low <= 1 <= each.paired_high for each in found) / len(found)
    assert 0.92 < covered < 0.98
    # Rounds alone do not know that copies differ: an interval of theirs would be too narrow.
    one = [
        ratio(*(Samples(each.seconds[:ROUNDS], each.cpu_seconds[:ROUNDS]) for each in pair))
        for pair in (drawn(seed, (1.0, 1.0), of_copy=0.05, of_round=0.2) for seed in range(100))
    ]
    assert sum(each.paired_low <= 1 <= each.paired_high for each in one) / len(one) < 0.5


@given(seed=st.integers(0, 10**6), factor=st.floats(0.2, 5.0))
def test_a_ratio_is_that_of_what_the_programs_take_whatever_the_rounds_do(seed: int, factor: float) -> None:
    slow, fast = drawn(seed, (factor, 1.0), of_copy=0.0, of_round=1.0)
    found = ratio(slow, fast)
    assert found.paired == pytest.approx(factor, rel=0.05)
    assert found.paired_low <= found.paired <= found.paired_high
    assert ratio(fast, slow).paired == pytest.approx(1 / found.paired)


def test_a_program_by_itself_is_1_without_doubt() -> None:
    (own,) = drawn(0, (1.0,), of_copy=0.0, of_round=0.1)
    found = ratio(own, own)
    assert found.paired == 1
    assert found.paired_low <= 1 <= found.paired_high


def test_copies_that_do_not_differ_leave_no_interval() -> None:
    times = (0.5, 1.0, 2.0)
    twice = pool([Samples(times, times)] * 2)
    found = ratio(twice, pool([Samples((1.0, 2.0, 4.0), times)] * 2))
    assert (found.paired, found.paired_low, found.paired_high) == pytest.approx((0.5, 0.5, 0.5))


def test_some_rounds_are_those_of_each_copy() -> None:
    both = pool([Samples((1.0, 2.0, 3.0, 4.0), (1.0,) * 4), Samples((5.0, 6.0, 7.0, 8.0), (2.0,) * 4)])
    odd = both.rounds(slice(1, None, 2))
    assert odd.seconds == (2.0, 4.0, 6.0, 8.0)
    assert odd.cpu_seconds == (1.0, 1.0, 2.0, 2.0)
    assert odd.copies == 2


def test_samples_of_different_rounds_or_copies_are_not_compared() -> None:
    four = Samples((1.0,) * 4, (1.0,) * 4)
    with pytest.raises(ValueError, match="samples of different rounds"):
        ratio(four, Samples((1.0,) * 5, (1.0,) * 5))
    with pytest.raises(ValueError, match="samples of different rounds"):
        ratio(four, Samples((1.0,) * 4, (1.0,) * 4, copies=2))


def test_of_one_copy_the_interval_is_over_the_rounds() -> None:
    random = np.random.default_rng(0)
    times, others = (tuple(random.lognormal(0, 0.1, 40).tolist()) for _ in range(2))
    found = ratio(Samples(times, times), Samples(others, others))
    assert found.paired == pytest.approx(math.exp(np.median(np.log(times) - np.log(others))))
    assert found.paired_low < found.paired < found.paired_high
