"""Keys and profiles: canonical forms, order, what is derived, and what cannot be made."""

import dataclasses
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.database import Profile, ProfileKey, ProfileValueError, combined, utc_now
from alpa_cfp.database.encoding import key_fields, key_from, profile_from_text, profile_text
from unit.alpa_cfp.database import profiles as some
from unit.alpa_cfp.database.profiles import NOON, failed, key_of, measured


@given(some.profiles)
def test_a_profile_is_read_back_bit_for_bit_from_its_text(profile: Profile) -> None:
    again = profile_from_text(profile_text(profile))
    assert again == profile
    assert [sample.hex() for sample in again.samples_s] == [sample.hex() for sample in profile.samples_s]
    assert profile_text(again) == profile_text(profile)


def test_a_profile_from_before_compiled_programs_were_read_has_the_same_text_and_says_so() -> None:
    text = profile_text(measured())
    assert "collectives_compiled" not in text
    assert not profile_from_text(text).collectives_compiled


@given(some.keys)
def test_a_key_is_read_back_from_its_fields(key: ProfileKey) -> None:
    assert key_from(key_fields(key)) == key


@given(some.keys, some.keys)
def test_two_keys_have_one_digest_only_if_they_are_equal(one: ProfileKey, other: ProfileKey) -> None:
    assert (one.digest == other.digest) == (one == other)


@given(some.keys, some.keys, some.keys)
def test_the_order_of_keys_is_total(a: ProfileKey, b: ProfileKey, c: ProfileKey) -> None:
    assert (a < b) + (b < a) + (a == b) == 1
    assert not (a < b and b < c) or a < c


def test_a_key_has_the_same_digest_in_every_version() -> None:
    key = ProfileKey("0" * 64, 3, (2, 4), "1x8", "cpu", "0.10.2", "--b=1 --a=2")
    # A change of this number makes every database that exists worthless.
    assert key.digest == "f177417eb879a2dd17b4b4204658991318b7aed01d9e8e62c7ec983fbf3a5286"


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(ProfileKey)])
def test_every_field_of_a_key_tells_keys_apart(field: str) -> None:
    others: dict[str, Any] = {"program": "1" * 64, "program_length": 1, "mesh_shape": (8,)}
    key = key_of()
    other = dataclasses.replace(key, **{field: others.get(field, "other")})
    assert other != key
    assert other.digest != key.digest


def test_the_order_of_flags_does_not_matter() -> None:
    assert key_of(xla_flags="--b=1  --a=2 --c") == key_of(xla_flags="--c --a=2 --b=1")


def test_the_last_of_a_flag_that_is_given_twice_counts() -> None:
    assert key_of(xla_flags="--a=1 --a=2") == key_of(xla_flags="--a=2")


def test_a_program_and_its_key_agree_on_digest_and_length() -> None:
    key = ProfileKey.of("größer", mesh_shape=[2], hosts="1x2", device_kind="cpu", jaxlib_version="0.10.2")
    assert (len(key.program), key.program_length) == (64, 6)


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("program", "module {}", "64 lower-case hexadecimal digits"),
        ("program_length", -1, "whole number of at least 0"),
        ("mesh_shape", (), "at least one axis"),
        ("mesh_shape", (2, 0), "whole number of at least 1"),
        ("mesh_shape", (2.0,), "whole number"),
        ("mesh_shape", "2x4", "tuple of whole numbers"),
        ("hosts", 8, "text without control characters"),
        ("device_kind", "a\0b", "text without control characters"),
        ("jaxlib_version", "\ud800", "text without control characters"),
    ],
)
def test_a_key_that_cannot_be_names_its_field_and_value(field: str, value: object, rule: str) -> None:
    with pytest.raises(ProfileValueError, match=rule) as caught:
        dataclasses.replace(key_of(), **{field: value})
    assert str(caught.value).startswith(f"{field} is ")


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("samples_s", (), "at least one sample"),
        ("samples_s", (0.1, 0.0), "above zero"),
        ("samples_s", (-0.1,), "above zero"),
        ("samples_s", (math.nan,), "finite"),
        ("samples_s", (math.inf,), "finite"),
        ("samples_s", ("0.1",), "finite number"),
        ("samples_s", (10**400,), "finite number"),
        ("compile_s", None, "a measured profile has it"),
        ("flops", -1.0, "at least zero"),
        ("temporary_bytes", None, "a measured profile has it"),
        ("output_bytes", 1.5, "whole number"),
        ("output_bytes", True, "whole number"),
        ("collectives", (("all-reduce", 4, 8),), "kind, bytes, group size and count"),
        ("collectives", (("all-reduce", 4, 0, 1),), "whole number of at least 1"),
        ("created_at", "2026-03-01T12:00:00", "offset from UTC"),
        ("created_at", "yesterday", "ISO 8601"),
        ("created_at", 0, "ISO 8601"),
        ("failure", "crashed", "a measured profile has none"),
        ("machine", None, "must be a text"),
        ("collectives_compiled", None, "must be true or false"),
        ("status", "ok", "measured, failed"),
    ],
)
def test_a_measured_profile_that_cannot_be_says_why(field: str, value: object, rule: str) -> None:
    with pytest.raises(ProfileValueError, match=rule):
        dataclasses.replace(measured(), **{field: value})


@pytest.mark.parametrize(("field", "value"), [("samples_s", (0.1,)), ("failure", None), ("failure", "slow")])
def test_a_failed_profile_has_a_known_failure_and_no_samples(field: str, value: object) -> None:
    with pytest.raises(ProfileValueError, match=r"failed profile has none|out_of_memory, compile_failed"):
        dataclasses.replace(failed(), **{field: value})


def test_a_long_value_is_cut_in_its_error() -> None:
    with pytest.raises(ProfileValueError, match=r"5002 characters") as caught:
        key_from("x" * 5000)
    assert len(str(caught.value)) < 600


def test_numbers_of_numpy_become_plain_ones() -> None:
    profile = measured(*np.array([0.5, 0.25]), argument_bytes=np.int64(7), flops=np.float32(0.5))
    assert profile == measured(0.5, 0.25, argument_bytes=7, flops=0.5)
    assert {type(value) for value in (*profile.samples_s, profile.flops)} == {float}
    assert type(profile.argument_bytes) is int


def test_zero_has_one_spelling() -> None:
    assert profile_text(measured(flops=-0.0)) == profile_text(measured(flops=0))


def test_the_order_of_collectives_does_not_matter() -> None:
    gather, reduce = ("all-gather", 64, 2, 1), ("all-reduce", 32, 4, 3)
    assert measured(collectives=[gather, reduce]) == measured(collectives=[reduce, gather])


def test_a_time_is_kept_in_utc() -> None:
    assert measured(created_at="2026-03-01T14:00:00+02:00") == measured(created_at=NOON)
    assert measured(created_at=NOON).created_at == "2026-03-01T12:00:00.000000Z"


@given(some.TIMES)
def test_a_time_in_canonical_form_stays_as_it_is(time: str) -> None:
    try:
        once = measured(created_at=time).created_at
    except ProfileValueError:
        return  # in UTC it would lie before year 1 or after year 9999
    assert measured(created_at=once).created_at == once


def test_now_is_a_time_that_a_profile_can_have() -> None:
    assert measured(created_at=utc_now()).created_at > "2026"


def test_times_are_derived_from_all_samples() -> None:
    profile = measured(4.0, 1.0, 3.0, 2.0, 5.0)
    assert (profile.minimum_s, profile.median_s) == (1.0, 3.0)
    assert profile.spread == pytest.approx((4 - 2) / 3)


def test_one_sample_has_no_spread() -> None:
    assert measured(0.5).spread == 0.0


@given(some.measured_profiles)
def test_the_median_lies_between_the_least_and_the_most(profile: Profile) -> None:
    if max(profile.samples_s) < 1e300:  # the mean of the middle two overflows
        assert profile.minimum_s <= profile.median_s <= max(profile.samples_s)


def test_memory_counts_what_is_aliased_once() -> None:
    assert measured().memory_bytes == 4096 + 2048 - 1024 + 512


@pytest.mark.parametrize("derived", ["minimum_s", "median_s", "spread", "memory_bytes"])
def test_a_failed_profile_says_that_nothing_was_measured(derived: str) -> None:
    with pytest.raises(ProfileValueError, match="failed"):
        getattr(failed(), derived)


def test_a_program_that_compiled_and_then_ran_out_of_memory_keeps_its_sizes() -> None:
    sizes = {f"{name}_bytes": 8 for name in ("argument", "output", "aliased", "temporary")}
    assert failed(**sizes).memory_bytes == 16


def test_combining_keeps_all_samples_in_the_order_of_the_sessions() -> None:
    later, earlier = measured(3.0, 1.0, created_at="2026-03-02T00:00:00Z"), measured(2.0)
    assert combined([later, earlier]).samples_s == (2.0, 3.0, 1.0)


def test_combining_takes_what_is_no_sample_from_the_newest_measured_session() -> None:
    later = measured(created_at="2026-03-02T00:00:00Z", temporary_bytes=7)
    last = failed(created_at="2026-03-03T00:00:00Z")
    assert combined([measured(), later, last]).temporary_bytes == 7


def test_one_success_outweighs_failures() -> None:
    last = failed(created_at="2026-03-03T00:00:00Z", failure="crashed")
    assert combined([failed(), measured(), last]) == measured()


def test_of_failures_the_newest_counts() -> None:
    last = failed(created_at="2026-03-03T00:00:00Z", failure="crashed")
    assert combined([last, failed()]) == last


@given(st.lists(some.profiles, min_size=1, max_size=4), st.randoms())
def test_combining_does_not_depend_on_the_order(sessions: list[Profile], random: Any) -> None:
    shuffled = random.sample(sessions, len(sessions))
    assert combined(shuffled) == combined(sessions)


@given(some.profiles)
def test_combining_one_session_gives_it_back(profile: Profile) -> None:
    assert combined([profile, profile]) == profile


def test_combining_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one session"):
        combined([])


def test_the_package_imports_neither_jax_nor_alpa() -> None:
    code = (
        "import sys, alpa_cfp.database; print(*sorted({m.split('.')[0] for m in sys.modules} & "
        "{'jax', 'jaxlib', 'alpa', 'numpy', 'ray'}))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == []
