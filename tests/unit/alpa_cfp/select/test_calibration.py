"""How fast a mesh is, by the profiles of a few small programs."""

import dataclasses

import pytest

from alpa_cfp.costs import Rates
from alpa_cfp.database import Profile, utc_now
from alpa_cfp.plan.caveats import Caveats
from alpa_cfp.profiling.keys import canonical_text
from alpa_cfp.select.calibration import calibration_programs, rates_of
from alpa_cfp.spmd.shardings.sharding import LogicalMesh

MESH = LogicalMesh((2, 4))
NOTHING = {f"{name}_bytes": 0 for name in ("argument", "output", "aliased", "temporary")}


def profiles(*seconds: float) -> list[Profile]:
    return [
        Profile(status="measured", created_at=utc_now(), samples_s=(each,), compile_s=0.1, **NOTHING)
        for each in seconds
    ]


def test_a_program_of_many_arrays_says_what_each_costs() -> None:
    rates = rates_of(MESH, profiles(1e-3, 1e-3 + 62 * 1e-5, 2e-3, 3e-3))
    assert rates.array_s == pytest.approx(1e-5)
    assert rates.overhead_s(2) == pytest.approx(1e-3)


def test_latency_is_what_a_small_collective_adds_to_a_program_that_does_nothing() -> None:
    assert rates_of(MESH, profiles(1e-3, 1e-3, 1.5e-3, 3e-3)).latency_s == pytest.approx(5e-4)


def test_the_link_is_as_fast_as_more_bytes_take_longer() -> None:
    slow, fast = (rates_of(MESH, profiles(1e-3, 1e-3, 2e-3, 2e-3 + more)) for more in (2e-3, 1e-3))
    assert fast.link_bytes_per_s == pytest.approx(2 * slow.link_bytes_per_s)


@pytest.mark.parametrize("devices", [2, 2048, 2049, 4096, 100_000])
def test_the_link_has_a_rate_on_a_mesh_of_any_size(devices: int) -> None:
    # The programs would gather equally much where each device has but one row, and costs divide by this rate.
    assert rates_of(LogicalMesh((devices,)), profiles(1e-3, 1e-3, 2e-3, 3e-3)).link_bytes_per_s > 0


FAILED = Profile(status="failed", created_at=utc_now(), failure="crashed", failure_message="it did")


@pytest.mark.parametrize("missing", [FAILED, None], ids=["failed", "unmeasured"])
def test_what_a_program_that_is_missing_would_have_said_is_as_usual_with_a_warning(missing: Profile | None) -> None:
    caveats = Caveats()
    rates = rates_of(MESH, [*profiles(1e-3, 1e-3, 1.5e-3), missing], caveats)
    assert rates.latency_s == pytest.approx(5e-4)
    assert rates.link_bytes_per_s == Rates().link_bytes_per_s
    (caveat,) = caveats.all
    assert caveat.may_cost
    assert "the link is taken to be 2e+09 bytes/s, as of some CPU" in caveat.text


def test_without_any_program_each_rate_is_as_usual_and_named_in_a_warning() -> None:
    caveats = Caveats()
    assert rates_of(MESH, [FAILED, None, None, FAILED], caveats) == Rates()
    (caveat,) = caveats.all
    assert "4 of 4 programs that tell how fast the mesh is could not be measured" in caveat.text
    assert "crashed: it did" in caveat.text
    for said in ("starting a program", "handing over an array", "the latency of a collective", "the link"):
        assert said in caveat.text


def test_where_all_are_measured_nothing_is_said() -> None:
    caveats = Caveats()
    rates_of(MESH, profiles(1e-3, 1e-3, 2e-3, 3e-3), caveats)
    assert not caveats.all


def test_noise_does_not_make_anything_negative() -> None:
    rates = rates_of(MESH, profiles(3e-3, 1e-3, 1e-3, 1e-3))
    assert all(value >= 0 for value in dataclasses.astuple(rates))


def test_a_mesh_is_calibrated_by_the_same_programs_each_time() -> None:
    texts = [[canonical_text(module) for module in calibration_programs(MESH)] for _ in range(2)]
    assert texts[0] == texts[1]


def test_one_device_communicates_with_none() -> None:
    mesh = LogicalMesh((1,))
    assert len(calibration_programs(mesh)) == 2
    assert rates_of(mesh, profiles(1e-3, 1e-3)).latency_s == Rates().latency_s
