"""Programs are measured once each, all samples are kept, and what fails costs nothing but itself."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from alpa_cfp.database import ProfileDatabase
from alpa_cfp.profiling import MeasureOptions, key_of, measure
from alpa_cfp.profiling.keys import code_flags, host_layout
from alpa_on_jax.xla_extension.executable import Client, MeshExecutable
from alpa_on_jax.xla_extension.hlo_module import HloModule
from alpa_on_jax.xla_extension.partition import partition
from unit.alpa_on_jax.xla_extension.helpers import MESH_2X4, split
from unit.alpa_on_jax.xla_extension.partition.solved_programs import solve

X = np.ones((16, 16), np.float32)
WHOLE, ROWS, COLUMNS = split(MESH_2X4, "", ""), split(MESH_2X4, "y", ""), split(MESH_2X4, "", "y")
QUIET = MeasureOptions(samples=3, progress=False)


def product(left: Any = WHOLE, right: Any = WHOLE, result: Any = WHOLE, *, name: str = "product") -> HloModule:
    """A product of matrices that lie as given, partitioned."""
    module = solve(lambda x, w: x @ w, (X, X), [left, right], [result], [result])
    module = dataclasses.replace(module, name=name)
    module.partitioned = partition(module)
    return module


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


def test_the_key_tells_programs_apart_by_what_is_compiled(client: Client) -> None:
    keys = {key_of(each, client.devices())[0] for each in (product(), product(ROWS, result=ROWS), product(name="b"))}
    assert len(keys) == 2
    donated = dataclasses.replace(product(), donated=(True, False))
    assert key_of(donated, client.devices())[0] not in keys


def test_a_module_that_is_not_partitioned_has_no_key(client: Client) -> None:
    with pytest.raises(ValueError, match="partition"):
        key_of(dataclasses.replace(product(), partitioned=None), client.devices())


def test_flags_that_change_no_code_are_no_part_of_the_key() -> None:
    flags = "--xla_force_host_platform_device_count=8 --xla_dump_to=/tmp/x --xla_cpu_enable_fast_math=true"
    assert code_flags(flags) == "--xla_cpu_enable_fast_math=true"


@dataclasses.dataclass
class _Device:
    process_index: int


def test_hosts_are_told_by_how_many_devices_each_has() -> None:
    assert host_layout([_Device(0)] * 4 + [_Device(1)] * 4) == "4+4"
