"""A whole program takes what its skeletons take, and what one more unit adds for each unit that is missing."""

from dataclasses import replace

import pytest

from alpa_cfp.database import Collective, Profile, utc_now
from alpa_cfp.select.extrapolated_profile import extrapolated_profile

SHORT = Profile(
    status="measured",
    created_at=utc_now(),
    samples_s=(1.0, 1.0, 1.0, 2.0),
    compile_s=0.5,
    argument_bytes=100,
    output_bytes=50,
    aliased_bytes=50,
    temporary_bytes=10,
    collectives=(Collective("all-reduce", 8, 4, 2), Collective("all-gather", 64, 4, 1)),
)
# Two units more.
LONG = replace(
    SHORT,
    samples_s=(1.5, 4.0, 1.5, 4.0),
    argument_bytes=140,
    output_bytes=70,
    aliased_bytes=70,
    collectives=(Collective("all-reduce", 8, 4, 6), Collective("all-gather", 80, 4, 1)),
)
FAILED = Profile(status="failed", created_at=utc_now(), failure="crashed", failure_message="it did")


def test_time_memory_and_collectives_grow_with_the_units_that_are_missing() -> None:
    whole = extrapolated_profile([SHORT, LONG], [5.0])
    assert whole.lower_half_mean_s == pytest.approx(1.0 + 5 * 0.5)
    assert whole.memory_bytes == SHORT.memory_bytes + 5 * (LONG.memory_bytes - SHORT.memory_bytes)
    assert whole.collectives == (Collective("all-gather", 64 + 5 * 16, 4, 1), Collective("all-reduce", 8, 4, 22))


def test_each_repeat_adds_what_its_own_skeleton_tells() -> None:
    whole = extrapolated_profile([SHORT, LONG, replace(LONG, samples_s=(3.0,) * 4)], [5.0, 2.0])
    assert whole.lower_half_mean_s == pytest.approx(1.0 + 5 * 0.5 + 2 * 2.0)


def test_noise_does_not_make_a_long_program_faster_than_a_short_one() -> None:
    whole = extrapolated_profile([SHORT, replace(LONG, samples_s=(0.9,) * 4)], [20.0])
    assert min(whole.samples_s) == SHORT.lower_half_mean_s


def test_a_program_of_which_a_skeleton_fails_fails() -> None:
    assert extrapolated_profile([SHORT, FAILED], [5.0]) is FAILED
