"""Numbers and strategies are said in the words of a user."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp import quantities
from alpa_cfp.plan.plan_report import Communication, CommunicationSource
from alpa_cfp.report import words
from alpa_cfp.strategies.block_strategy import StateSharding
from unit.alpa_cfp.report.reports import AXES, MESH, Roles, alternative


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.0452, "45.2 ms"),
        (0.00052, "0.520 ms"),
        (1.53449, "1,530 ms"),
        (0.0099996, "10.0 ms"),
        (0.0, "0 ms"),
        (1e-9, "<0.001 ms"),
        (None, "unknown"),
    ],
)
def test_a_time_is_in_ms_with_three_digits_that_count(seconds: float | None, said: str) -> None:
    assert quantities.time(seconds) == said


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (4_200_000, "4.2 MB"),
        (1_253_000_000, "1.25 GB"),
        (999_999, "1 MB"),
        (0, "0 bytes"),
        (1, "1 byte"),
        (32_768, "32.8 kB"),
    ],
)
def test_a_size_is_in_decimal_bytes(count: int, said: str) -> None:
    assert quantities.size(count) == said


@given(st.floats(1e-6, 1e5))
def test_a_time_that_is_read_back_is_within_half_a_percent(seconds: float) -> None:
    read = float(quantities.time(seconds).removesuffix(" ms").replace(",", "")) / 1e3
    assert read == pytest.approx(seconds, rel=0.0051)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(1.0, "as fast"), (1.12, "12% slower"), (0.96, "4.0% faster"), (3.14, "3.1 times as slow"), (1.003, "as fast")],
)
def test_how_much_slower_a_time_is_depends_on_the_other_one(seconds: float, said: str) -> None:
    assert words.slower(seconds, 1.0) == said


def test_a_prediction_is_said_to_be_too_low_or_too_high() -> None:
    assert words.off(0.9, 1.0) == "10% too low"
    assert words.off(1.1, 1.0) == "10% too high"
    assert words.off(1.001, 1.0) == "exact"


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        (("samples", "columns"), "weights split by column on axis 1; samples split on axis 0"),
        (("rows", "samples"), "weights split by row on axis 0; samples split on axis 1"),
        (("samples", "samples"), "samples split on axes 0 and 1"),
        (("samples", "heads"), "heads split on axis 1; samples split on axis 0"),
        (("samples", "experts"), "experts split on axis 1; samples split on axis 0"),
        (("samples", "batch"), "heads or experts split on axis 1; samples split on axis 0"),
        (("samples", None), "samples split on axis 0; replicated on axis 1"),
        ((None, None), "replicated on every device"),
    ],
)
def test_a_strategy_is_said_by_what_is_split_and_where(roles: Roles, said: str) -> None:
    assert words.strategy(alternative(roles, 1.0, 8, 8), MESH, AXES) == said


def test_an_axis_of_a_single_device_is_not_mentioned() -> None:
    own = alternative((None, "columns"), 1.0, 8, 8)
    assert words.strategy(own, (1, 4), AXES) == "weights split by column on axis 1"
    assert words.strategy(own, (1, 1), AXES) == "on one device"


def test_shared_state_is_shared_along_the_axes_whose_devices_have_equal_weights() -> None:
    own = alternative(("samples", "columns"), 1.0, 8, 8, kept=StateSharding.ZERO2)
    assert words.strategy(own, MESH, AXES).endswith("; optimizer state sharded along axis 0")
    own = alternative(("samples", None), 1.0, 8, 8, kept=StateSharding.ZERO3)
    assert words.strategy(own, MESH, AXES).endswith("; weights and optimizer state sharded along axes 0 and 1")


def test_axes_have_the_names_that_the_mesh_gives_them() -> None:
    own = alternative(("samples", "columns"), 1.0, 8, 8)
    said = words.strategy(own, MESH, ("data", "model"))
    assert said == "weights split by column on axis model; samples split on axis data"


@pytest.mark.parametrize(
    ("each", "said"),
    [
        (Communication("all-reduce", (0,), 4_200_000, 1, "gradient"), "gradient all-reduce 4.2 MB on axis 0"),
        (Communication("all-reduce", (0,), 8, 1, "mostly gradient"), "mostly gradient all-reduce 8 bytes on axis 0"),
        (Communication("all-gather", (0, 1), 1000, 3, "weight"), "3 weight all-gathers of 1 kB on axes 0 and 1"),
        (Communication("all-reduce", (1,), 4_200_000, 2), "2 all-reduces of 4.2 MB on axis 1"),
    ],
)
def test_a_collective_is_said_with_what_it_is_for_where_that_is_known(each: Communication, said: str) -> None:
    assert words.communication(each, AXES) == said


def test_a_collective_over_no_whole_axes_is_said_without_axes() -> None:
    assert words.communication(Communication("all-to-all", (), 1000, 1), AXES) == "all-to-all 1 kB"


def test_small_collectives_are_said_together_after_the_largest() -> None:
    many = tuple(Communication("all-reduce", (1,), size, 1) for size in (1000, 5_000_000, 2000, 3_000_000, 4_000_000))
    own = replace(alternative(("samples", "columns"), 1.0, 8, 8), communication=many)
    said = words.communications(own, AXES)
    assert said.startswith("all-reduce 5 MB")
    assert said.endswith("2 smaller ones (3 kB)")


def test_a_strategy_without_collectives_communicates_nothing() -> None:
    own = replace(alternative((None, None), 1.0, 8, 8), communication=())
    assert words.communications(own, AXES) == "nothing is communicated"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("compiled", "all-reduce 1 kB on axis 1 (by the compiled program)"),
        ("predicted", "all-reduce 1 kB on axis 1 (predicted, XLA partitions this block)"),
    ],
)
def test_communication_of_what_xla_partitions_is_said_with_where_it_is_known_from(
    source: CommunicationSource, said: str
) -> None:
    own = replace(
        alternative(("samples", "columns"), 1.0, 8, 8),
        communication=(Communication("all-reduce", (1,), 1000, 1),),
        communication_source=source,
    )
    assert words.communications(own, AXES) == said
    nothing = words.communications(replace(own, communication=()), AXES)
    assert nothing.startswith("nothing is communicated (")


def test_communication_that_is_not_known_is_not_said_to_be_none() -> None:
    own = replace(alternative((None, None), 1.0, 8, 8), communication=(), communication_source="unknown")
    assert words.communications(own, AXES) == "what is communicated is not known: XLA partitions this block"


def test_a_number_of_collectives_that_is_not_known_is_said_not_to_be() -> None:
    assert words.count_of_collectives(None) == "not known"
    assert words.count_of_collectives(1024) == "1,024"
