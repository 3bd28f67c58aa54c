"""Programs are measured once each, all samples are kept, and what fails costs nothing but itself."""

import dataclasses
import os
from collections.abc import Generator, Sequence
from pathlib import Path
from queue import SimpleQueue

import jax
import numpy as np
import pytest

from alpa_cfp.database import Profile, ProfileDatabase, utc_now
from alpa_cfp.errors import ProfilingError
from alpa_cfp.profiling import DeviceDescription, MeasureOptions, Profiler, TimeBudget, key_of
from alpa_cfp.profiling.keys import canonical_text, code_flags, host_layout
from alpa_cfp.profiling.process.protocol import Finished
from alpa_cfp.profiling.queue import Group, ProfilingQueue
from alpa_cfp.profiling.runners import SubprocessRunner
from alpa_cfp.spmd.compile.executable import Client, MeshExecutable
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import partition
from unit.alpa_cfp.profiling.programs import (
    COLUMNS,
    ROWS,
    WHOLE,
    X,
    crashing,
    measure,
    product,
    scaled,
    sum_of_spectrum,
    uncompilable,
    worker_pid_of,
)
from unit.alpa_cfp.spmd.helpers import MESH_2X4, split
from unit.alpa_cfp.spmd.partition.solved_programs import solve

pytestmark = pytest.mark.slow

QUIET = MeasureOptions(samples=3, progress=False, isolated=False)


@pytest.fixture
def client() -> Client:
    return Client(jax.devices()[:8])


@pytest.fixture
def database() -> ProfileDatabase:
    return ProfileDatabase.in_memory()


def test_a_profile_has_all_samples_memory_work_and_communication(client: Client, database: ProfileDatabase) -> None:
    (profile,) = measure([product(COLUMNS, ROWS)], client, database, QUIET)
    assert len(profile.samples_s) == 3
    assert min(profile.samples_s) > 0
    assert profile.argument_bytes == 2 * X.nbytes // 4
    assert profile.output_bytes == X.nbytes
    assert profile.flops is not None
    assert profile.flops >= 2 * 16 * 16 * 4
    assert profile.bytes_accessed is not None
    assert profile.bytes_accessed >= 2 * X.nbytes // 4 + X.nbytes
    assert [(c.kind, c.size_bytes, c.group_size, c.count) for c in profile.collectives] == [
        ("all-reduce", X.nbytes, 4, 1)
    ]


def test_what_xla_partitions_has_the_communication_of_its_compiled_program(
    client: Client, database: ProfileDatabase
) -> None:
    module = sum_of_spectrum()
    assert module.partitioned is not None
    assert (module.partitioned.partitioner, module.partitioned.collectives) == ("xla", ())
    read, known = measure([module, product(COLUMNS, ROWS)], client, database, QUIET)
    assert ("all-reduce", 4, 4) in {(c.kind, c.size_bytes, c.group_size) for c in read.collectives}
    assert (read.collectives_compiled, known.collectives_compiled) == (True, False)


def test_equal_programs_are_measured_once(client: Client, database: ProfileDatabase) -> None:
    profiles = measure(
        [product(name="first"), product(name="second"), product(ROWS, result=ROWS)], client, database, QUIET
    )
    assert profiles[0] == profiles[1] != profiles[2]
    assert len(database.keys()) == 2


def test_what_is_in_the_database_is_not_measured_again(
    client: Client, database: ProfileDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = measure([product()], client, database, QUIET)
    monkeypatch.setattr(MeshExecutable, "__init__", None)
    assert measure([product()], client, database, QUIET) == before


def test_when_the_time_is_over_only_what_is_in_the_database_has_a_profile(
    client: Client, database: ProfileDatabase
) -> None:
    with Profiler(client, database, QUIET) as profiler:
        (known,) = profiler.measure([product()])
        assert profiler.measure_within(TimeBudget(0.0), [product(), product(COLUMNS, ROWS)]) == [known, None]
    assert len(database.keys()) == 1


def test_only_missing_samples_are_taken_and_the_program_is_still_loaded(
    client: Client, database: ProfileDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Profiler(client, database, QUIET) as profiler:
        (before,) = profiler.measure([product()])
        monkeypatch.setattr(MeshExecutable, "__init__", None)
        (after,) = profiler.measure([product()], 5)
    assert after.samples_s[:3] == before.samples_s
    assert len(after.samples_s) == 5


@pytest.mark.parametrize(("samples", "taken"), [(None, [1, 1]), (5, [2])])
def test_what_is_to_be_told_apart_is_measured_together_though_another_could_share_the_work(
    client: Client,
    database: ProfileDatabase,
    monkeypatch: pytest.MonkeyPatch,
    samples: int | None,
    taken: list[int],
) -> None:
    found: list[int] = []
    take = ProfilingQueue.take

    def take_for_two(work: ProfilingQueue) -> Group | None:
        group = take(work, 2)
        found.extend([] if group is None else [len(group.keys)])
        return group

    monkeypatch.setattr(ProfilingQueue, "take", take_for_two)
    with Profiler(client, database, QUIET) as profiler:
        profiles = profiler.measure([product(), product(COLUMNS, ROWS)], samples)
    assert found == taken
    assert {len(profile.samples_s) for profile in profiles} == {samples or QUIET.samples}


def test_a_program_of_an_earlier_group_is_not_compiled_again(
    client: Client, database: ProfileDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [product(COLUMNS, ROWS), product(ROWS, result=ROWS)]
    with Profiler(client, database, QUIET) as profiler:
        profiler.measure([product()])
        profiler.measure(others)
        monkeypatch.setattr(MeshExecutable, "__init__", None)
        (again,) = profiler.measure([product()], 5)
    assert len(again.samples_s) == 5


def test_a_program_is_let_go_for_one_that_is_measured_alone(
    client: Client, database: ProfileDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    deleted: list[str] = []
    original = MeshExecutable.delete

    def noting(self: MeshExecutable) -> None:
        deleted.append(self.module.name)
        original(self)

    monkeypatch.setattr(MeshExecutable, "delete", noting)
    with Profiler(client, database, QUIET) as profiler:
        profiler.measure([product(name="first")])
        assert deleted == []
        profiler.measure([product(ROWS, result=ROWS, name="second")])
        assert deleted == ["first"]
    assert deleted == ["first", "second"]


def test_a_run_that_is_broken_off_keeps_what_it_has_finished(
    client: Client, database: ProfileDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = [product(), product(ROWS, result=ROWS), product(WHOLE, COLUMNS, COLUMNS)]
    options = dataclasses.replace(QUIET, group=1)
    compiled: list[str] = []
    original = MeshExecutable.__init__

    def compile_two(self: MeshExecutable, client: Client, module: HloModule) -> None:
        if len(compiled) == 2:
            raise KeyboardInterrupt
        compiled.append(module.name)
        original(self, client, module)

    monkeypatch.setattr(MeshExecutable, "__init__", compile_two)
    with pytest.raises(KeyboardInterrupt):
        measure(modules, client, database, options)
    assert len(database.keys()) == 2
    compiled.clear()
    assert len(measure(modules, client, database, options)) == 3
    assert len(compiled) == 1


@pytest.mark.parametrize(
    ("message", "kind"),
    [("RESOURCE_EXHAUSTED: Out of memory allocating 1 byte", "out_of_memory"), ("INTERNAL: broken", "compile_failed")],
)
def test_a_program_that_does_not_compile_costs_itself_only(
    client: Client, database: ProfileDatabase, monkeypatch: pytest.MonkeyPatch, message: str, kind: str
) -> None:
    original = MeshExecutable.__init__

    def fail_for_the_bad_one(self: MeshExecutable, client: Client, module: HloModule) -> None:
        if module.name == "bad":
            raise jax.errors.JaxRuntimeError(message)
        original(self, client, module)

    monkeypatch.setattr(MeshExecutable, "__init__", fail_for_the_bad_one)
    bad, good = measure([product(name="bad"), product(ROWS, result=ROWS)], client, database, QUIET)
    assert (bad.status, bad.failure, bad.failure_message) == ("failed", kind, message)
    assert good.status == "measured"
    # It is known now, and not tried again.
    assert measure([product(name="good")], client, database, QUIET) == [bad]


def test_what_fails_beside_other_programs_and_not_alone_is_measured(
    client: Client, database: ProfileDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = MeshExecutable.__init__
    loaded: list[str] = []

    def fail_beside_another(self: MeshExecutable, client: Client, module: HloModule) -> None:
        if module.name == "large" and loaded == ["small"]:
            loaded.clear()
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 byte")
        loaded.append(module.name)
        original(self, client, module)

    monkeypatch.setattr(MeshExecutable, "__init__", fail_beside_another)
    modules = [product(name="small"), product(ROWS, result=ROWS, name="large")]
    assert [profile.status for profile in measure(modules, client, database, QUIET)] == ["measured", "measured"]
    # Nothing of the first attempt is kept.
    assert [len(database.sessions(key)) for key in database.keys()] == [1, 1]  # noqa: SIM118


def test_on_cpus_programs_run_in_another_process(
    client: Client, database: ProfileDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MeshExecutable, "__init__", None)
    (profile,) = measure([product()], client, database, dataclasses.replace(QUIET, isolated=None))
    assert profile.status == "measured"


def test_a_profiler_keeps_its_process_for_later_calls_and_ends_it(client: Client, database: ProfileDatabase) -> None:
    with Profiler(client, database, dataclasses.replace(QUIET, isolated=True)) as profiler:
        assert worker_pid_of(profiler) is None
        profiler.measure([scaled(2)])
        pid = worker_pid_of(profiler)
        profiler.measure([scaled(3)])
        assert worker_pid_of(profiler) == pid is not None
        profiler.measure([crashing()])
        assert worker_pid_of(profiler) is None
        profiler.measure([scaled(4)])
        again = worker_pid_of(profiler)
        assert again not in (pid, None)
    with pytest.raises(ProcessLookupError):
        os.kill(again, 0)
    assert [profile.status for _, profile in database.items()].count("measured") == 3


def test_a_profiler_that_was_interrupted_goes_on_with_a_new_process(
    client: Client, database: ProfileDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    modules = [scaled(2), scaled(3)]
    with Profiler(client, database, dataclasses.replace(QUIET, isolated=True)) as profiler:
        monkeypatch.setattr(ProfileDatabase, "put", interrupt)
        with pytest.raises(KeyboardInterrupt) as interrupted:
            profiler.measure(modules)
        monkeypatch.undo()
        profiler.measure(modules[:1])
        pid = worker_pid_of(profiler)
        del interrupted  # and with it all that the interrupted call held
        assert [profile.status for profile in profiler.measure(modules)] == ["measured", "measured"]
        assert worker_pid_of(profiler) == pid


def test_where_no_other_process_can_be_had_this_one_measures_and_says_so(
    client: Client, database: ProfileDatabase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(self: SubprocessRunner) -> None:
        raise ProfilingError.no_worker("it has 4 devices")

    monkeypatch.setattr(SubprocessRunner, "start", start)
    (profile,) = measure([product()], client, database, dataclasses.replace(QUIET, isolated=None))
    assert profile.status == "measured"
    assert "it has 4 devices" in caplog.text
    # Who demands it does not get less.
    with pytest.raises(ProfilingError, match="it has 4 devices"):
        measure([scaled(2)], client, database, dataclasses.replace(QUIET, isolated=True))


def test_a_damaged_database_file_costs_its_profiles_and_not_the_measurement(
    client: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "profiles.sqlite"
    with ProfileDatabase.open(path) as database:
        measure([product()], client, database, QUIET)
    path.write_bytes(path.read_bytes()[:5000])
    with ProfileDatabase.open(path) as database:
        assert database.keys() == []
        (profile,) = measure([product()], client, database, QUIET)
    assert profile.status == "measured"
    assert "set aside" in caplog.text


def test_the_key_tells_programs_apart_by_what_is_compiled(client: Client) -> None:
    devices = DeviceDescription.of(client.devices())
    keys = {key_of(each, devices)[0] for each in (product(), product(ROWS, result=ROWS), product(name="b"))}
    assert len(keys) == 2
    donated = dataclasses.replace(product(), donated=(True, False))
    assert key_of(donated, devices)[0] not in keys


def test_a_text_says_that_small_arrays_of_a_collective_are_joined_when_it_is_compiled() -> None:
    """Profiles of before that was done are of another compiled program."""
    whole, columns, rows = (split(MESH_2X4, *dims) for dims in (("", ""), ("", "y"), ("y", "")))
    arrays = [np.ones((8, 8), np.float32)] * 3
    for count in (1, 2):
        module = solve(
            lambda x, *weights, count=count: tuple(x @ weight for weight in weights[:count]),
            arrays[: count + 1], [columns, rows, rows][: count + 1], [whole] * count, [whole] * count,
        )  # fmt: skip
        module.partitioned = partition(module)
        assert ('"small_arrays": "joined"' in canonical_text(module)) == (count == 2)


def test_a_module_that_is_not_partitioned_has_no_key(client: Client) -> None:
    with pytest.raises(ValueError, match="partition"):
        key_of(dataclasses.replace(product(), partitioned=None), DeviceDescription.of(client.devices()))


def test_flags_that_change_no_code_are_no_part_of_the_key() -> None:
    flags = "--xla_force_host_platform_device_count=8 --xla_dump_to=/tmp/x --xla_cpu_enable_fast_math=true"
    assert code_flags(flags) == "--xla_cpu_enable_fast_math=true"


@dataclasses.dataclass
class _Device:
    process_index: int


def test_hosts_are_told_by_how_many_devices_each_has() -> None:
    assert host_layout([0] * 4 + [1] * 4) == "4+4"


class DriftingMeasurer:
    """Measures without running anything: programs take a second, times what `slowness` says of each group."""

    def __init__(self, slowness: list[float]) -> None:
        self._slowness = slowness

    def start(self) -> None:
        """Does nothing."""

    def prepare(self, modules: Sequence[HloModule]) -> None:
        """Does nothing."""

    def measure(self, work: ProfilingQueue) -> Generator[tuple[Group, Finished]]:
        while (group := work.take()) is not None:
            slowness = self._slowness.pop(0)
            for index in range(len(group.keys)):
                profile = Profile(
                    status="measured", created_at=utc_now(), samples_s=(slowness,) * group.samples, compile_s=0.0,
                    argument_bytes=0, output_bytes=0, aliased_bytes=0, temporary_bytes=0,
                )  # fmt: skip
                yield group, Finished(index, profile)
            work.end(group)

    def close(self) -> None:
        """Does nothing."""


def test_times_are_those_at_the_speed_at_which_the_reference_was_first_measured(
    client: Client, database: ProfileDatabase
) -> None:
    measurer = DriftingMeasurer([1.0, 1.5, 0.5])
    options = dataclasses.replace(QUIET, group=1)
    mesh = (measurer, DeviceDescription.of(client.devices()))
    with Profiler(mesh, database, options, [product(name="reference")]) as profiler:
        programs = [product(COLUMNS, ROWS), product(ROWS, result=ROWS), product(WHOLE, COLUMNS, COLUMNS)]
        profiles = profiler.measure(programs)
    assert [profile.samples_s for profile in profiles] == [(1.0,) * 3] * 3


def test_references_run_with_each_group_and_are_measured_beside_it(client: Client, database: ProfileDatabase) -> None:
    with Profiler(client, database, QUIET, [product(name="reference")]) as profiler:
        profiles = profiler.measure([product(COLUMNS, ROWS), product(ROWS, result=ROWS)])
    assert [len(profile.samples_s) for profile in profiles] == [3, 3]
    reference = database.get(key_of(product(name="reference"), profiler.devices)[0])
    assert reference is not None
    assert len(reference.samples_s) >= 10


class PreparingMeasurer(DriftingMeasurer):
    """Notes what it is to prepare."""

    def __init__(self) -> None:
        super().__init__([])
        self.prepared: SimpleQueue[list[str]] = SimpleQueue()

    def prepare(self, modules: Sequence[HloModule]) -> None:
        self.prepared.put([module.name for module in modules])


def test_what_is_expected_and_not_known_is_prepared_once_after_the_references(
    client: Client, database: ProfileDatabase
) -> None:
    devices, measurer = DeviceDescription.of(client.devices()), PreparingMeasurer()
    known, unknown = product(name="known"), product(ROWS, result=ROWS, name="unknown")
    measure([known], client, database, QUIET)
    with Profiler((measurer, devices), database, QUIET, [scaled(2)]) as profiler:
        profiler.expect([known])
        profiler.expect([known, unknown])
        assert measurer.prepared.get() == [scaled(2).name, "unknown"]
        profiler.expect([unknown])
        profiler.expect([product(WHOLE, COLUMNS, COLUMNS, name="next")])
        assert measurer.prepared.get() == ["next"]


def test_programs_that_were_prepared_are_not_compiled_again(
    client: Client, database: ProfileDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[str] = []
    original = MeshExecutable.__init__

    def noting(self: MeshExecutable, client: Client, module: HloModule) -> None:
        compiled.append(module.name)
        original(self, client, module)

    monkeypatch.setattr(MeshExecutable, "__init__", noting)
    with Profiler(client, database, QUIET) as profiler:
        profiler.expect([product(name="expected")])
        profiler.measure([product(ROWS, result=ROWS, name="another"), product(name="expected")])
    assert sorted(compiled) == ["another", "expected"]


def test_programs_are_compiled_once_though_one_alone_was_prepared_after_others(
    client: Client, database: ProfileDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = SimpleQueue[str]()
    original = MeshExecutable.__init__

    def noting(self: MeshExecutable, client: Client, module: HloModule) -> None:
        original(self, client, module)
        compiled.put(module.name)

    monkeypatch.setattr(MeshExecutable, "__init__", noting)
    measured, expected = product(ROWS, result=ROWS, name="measured"), product(name="expected")
    with Profiler(client, database, QUIET) as profiler:
        profiler.measure([measured, product(WHOLE, COLUMNS, COLUMNS, name="another")])
        assert {compiled.get_nowait(), compiled.get_nowait()} == {"measured", "another"}
        profiler.expect([expected])
        assert compiled.get(timeout=60) == "expected"
        profiler.measure([measured, expected], 5)
    assert compiled.empty()


def test_expecting_what_cannot_be_compiled_harms_nothing(client: Client, database: ProfileDatabase) -> None:
    with Profiler(client, database, QUIET) as profiler:
        profiler.expect([uncompilable()])
        profiles = profiler.measure([uncompilable(), product()])
    assert [profile.status for profile in profiles] == ["failed", "measured"]
