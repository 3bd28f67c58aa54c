"""Functions in processes of their own: whatever they do, the caller goes on."""

import operator
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from alpa_cfp.targets.target import target
from alpa_cfp_bench.targets.apart import Outcome, apart

pytestmark = pytest.mark.slow


def test_a_function_runs_in_a_process_of_its_own() -> None:
    outcome = apart(os.getpid, limit_s=60)
    assert outcome.value not in (None, os.getpid())


@pytest.mark.parametrize(
    ("function", "args", "limit_s", "failure"),
    [
        (operator.truediv, (1, 0), 60, "ZeroDivisionError: division by zero"),
        (os._exit, (3,), 60, "its process ended with exit code 3"),
        (time.sleep, (600,), 0.5, "not done after 0.5 s"),
    ],
)
def test_what_raises_crashes_or_hangs_is_an_outcome(
    function: Callable[..., Any], args: tuple[Any, ...], limit_s: float, failure: str
) -> None:
    assert apart(function, *args, limit_s=limit_s) == Outcome(None, failure)


class Exits:
    """A value that ends the process which reads it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (4,)


def test_a_process_that_ends_before_it_has_read_all_is_not_waited_for() -> None:
    outcome = apart(len, Exits(), b"0" * 1_000_000, limit_s=60)
    assert outcome == Outcome(None, "its process ended with exit code 4")


def test_errors_of_this_project_are_told_by_their_words_alone() -> None:
    failure = apart(target, "h10:1x8", limit_s=60).failure
    assert failure.startswith("there is no chip called 'h10'")


def test_what_a_process_says_before_it_crashes_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    outcome = apart(os.abort, limit_s=60)
    assert outcome.failure.startswith("its process ended with exit code -6")
    assert apart(_says_and_exits, limit_s=60).failure == "its process ended with exit code 5: out of paper"
    assert capfd.readouterr().err == ""


def _says_and_exits() -> None:
    print("out of paper", file=sys.stderr, flush=True)
    os._exit(5)
