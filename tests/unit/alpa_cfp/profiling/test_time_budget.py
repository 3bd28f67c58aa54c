"""A time budget is one limit, however many plannings share it."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.profiling import TimeBudget


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which the test sets."""
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_no_seconds_are_no_limit() -> None:
    budget = TimeBudget.of(None)
    assert not budget.is_limited
    assert budget.left_s is None
    assert budget.share(3) is budget


def test_what_is_left_falls_with_time_and_stays_above_zero(clock: list[float]) -> None:
    budget = TimeBudget(10.0, clock[0])
    clock[0] += 4.0
    assert budget.left_s == pytest.approx(6.0)
    clock[0] += 7.0
    assert budget.is_over
    assert budget.left_s is not None
    assert budget.left_s > 0


def test_a_share_that_is_not_used_is_left_to_the_others(clock: list[float]) -> None:
    budget = TimeBudget(12.0, clock[0])
    assert budget.share(3).limit_s == pytest.approx(4.0)
    clock[0] += 2.0
    assert budget.share(2).limit_s == pytest.approx(5.0)
    clock[0] += 5.0
    assert budget.share(1).limit_s == pytest.approx(5.0)


@given(st.floats(0.1, 100.0), st.lists(st.floats(0.0, 1.0), min_size=1, max_size=6))
def test_shares_that_are_kept_to_never_take_more_than_the_budget(limit_s: float, parts: list[float]) -> None:
    now = 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "perf_counter", lambda: now)
        budget = TimeBudget(limit_s, now)
        for others, part in zip(range(len(parts), 0, -1), parts, strict=True):
            now += part * budget.share(others).limit_s
    assert now <= limit_s * (1 + 1e-9)
