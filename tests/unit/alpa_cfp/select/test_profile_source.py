"""A source of profiles records what was requested, and candidates have the samples of their own runs."""

from collections.abc import Sequence
from dataclasses import replace

from alpa_cfp.database import Profile, utc_now
from alpa_cfp.profiling import DeviceDescription, key_of
from alpa_cfp.select.communication import reference_programs
from alpa_cfp.select.profile_source import Samples, TrackedSource
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.shardings.sharding import LogicalMesh

DEVICES = DeviceDescription("cpu", "4", "0.10.2")
MODULES = reference_programs(LogicalMesh((4,)))
NOTHING = {f"{name}_bytes": 0 for name in ("argument", "output", "aliased", "temporary")}
RUN_AGAIN = Profile(
    status="measured", created_at=utc_now(), samples_s=(1.0, 2.0, 3.0, 4.0, 5.0), compile_s=0.1, **NOTHING
)


def source_of(profiles: Sequence[Profile | None]) -> TrackedSource:
    def profiles_of(modules: Sequence[HloModule], samples: Samples = None, /) -> list[Profile | None]:
        del samples
        return list(profiles[: len(modules)])

    return TrackedSource(DEVICES, profiles_of, samples=2)


def test_the_keys_of_all_requested_profiles_are_recorded() -> None:
    source = source_of([RUN_AGAIN, None])
    source(MODULES)
    source(MODULES[:1], 3)
    assert source.keys == [key_of(module, DEVICES)[0] for module in [*MODULES, MODULES[0]]]


def test_a_candidate_has_its_first_samples_though_its_program_ran_again_as_a_whole_plan() -> None:
    assert source_of([RUN_AGAIN, None])(MODULES) == [replace(RUN_AGAIN, samples_s=(1.0, 2.0)), None]


def test_a_plan_has_all_of_its_samples() -> None:
    assert source_of([RUN_AGAIN, None])(MODULES, 3) == [RUN_AGAIN, None]
