"""Executables of pipelines: they are timed as hosts ask for it, and end quietly when their start has failed."""

from types import SimpleNamespace

from alpa.pipeline_parallel.pipeshard_executable import PipeshardDriverExecutable, PipeshardMeshWorkerExecutable


def test_a_host_times_the_programs_of_a_pipeline_with_its_backend_and_devices() -> None:
    executable = object.__new__(PipeshardMeshWorkerExecutable)
    executable.partial_grad_exec_uuids, executable._related_exec_uuids = [3, 5], []
    executable.worker = SimpleNamespace(
        reset_memory_stats=lambda: None,
        profile_executable_with_dummy_inputs=lambda uuid, skip_grad_sync: [uuid, uuid + 2],
        get_exec_total_allocation_size=lambda uuid: uuid * 1024**3,
    )
    assert executable.profile_with_dummy_inputs("backend", ["device"]) == {3: (4.0, 3.0), 5: (6.0, 5.0)}


def test_a_pipeline_whose_start_has_failed_is_forgotten_by_no_mesh() -> None:
    executable = object.__new__(PipeshardDriverExecutable)
    executable.mesh_group = [SimpleNamespace(delete_remote_executable=lambda uuid: 1 / 0)]
    executable.__del__()


def test_a_pipeline_that_ends_is_forgotten_by_each_mesh() -> None:
    forgotten: list[int] = []
    executable = object.__new__(PipeshardDriverExecutable)
    executable.mesh_group = [SimpleNamespace(delete_remote_executable=forgotten.append)] * 2
    executable.exec_uuid = 7
    executable.__del__()
    assert forgotten == [7, 7]
    executable.mesh_group = []
