"""What goes wrong in the processes of hosts is told to the user, with its reason, by the next call that waits for it.

The mesh goes on: what does not use anything of the call that failed works as before.
"""

from pathlib import Path
from typing import Any

import alpa
import numpy as np
import pytest
import ray

from alpa_on_jax import errors
from alpa_on_jax.ray_mesh.failures.calling import call_on_hosts

ARRAY = np.arange(16, dtype=np.float32).reshape(8, 2)


def doubling() -> Any:
    # A function of its own, so that what is compiled is this test's.
    return alpa.parallelize(lambda x: x * 2, batch_argnums=(), method=alpa.ShardParallel())


def failing_part() -> type:
    """In the place of a program's part in a host; by value, since a host has no module of this name."""

    class Part:
        def __init__(self, *args: Any):
            self.compiled = None
            raise ValueError("this program cannot be loaded")

    return Part


def put_failing_program(mesh: Any, number: int) -> None:
    for worker in mesh.workers:
        worker.delete_executable.remote(number)
        worker.put_executable.remote(number, failing_part())


def test_the_value_that_a_failed_call_should_have_made_tells_why_it_is_not_there(mesh: Any) -> None:
    function = doubling()
    np.asarray(function(ARRAY))
    put_failing_program(mesh, function.get_last_executable().exec_uuid)
    result = function(ARRAY)
    with pytest.raises(errors.HostError, match=r"host [01] of the mesh failed earlier: ValueError: this program"):
        np.asarray(result)
    with pytest.raises(errors.HostError, match="this program cannot be loaded"):
        result.block_until_ready()


def test_after_a_failed_call_the_next_program_works(mesh: Any) -> None:
    put_failing_program(mesh, -1)
    np.testing.assert_array_equal(np.asarray(doubling()(ARRAY)), ARRAY * 2)


def test_waiting_for_the_hosts_tells_what_failed_and_tells_it_once(mesh: Any) -> None:
    put_failing_program(mesh, -1)
    with pytest.raises(errors.HostError, match="this program cannot be loaded"):
        mesh.sync_workers()
    mesh.sync_workers()


def test_a_program_that_fails_while_it_runs_does_not_end_its_process(mesh: Any) -> None:
    function = doubling()
    kept = function(ARRAY)
    np.asarray(kept)

    def break_runs(backend: Any) -> None:
        from alpa_cfp.spmd.distributed.host_client import HostExecutable

        def run(self: Any, arguments: Any) -> Any:
            raise RuntimeError("out of everything")

        HostExecutable.run = run

    def mend_runs(backend: Any) -> None:
        from alpa_cfp.spmd.distributed.host_client import HostExecutable

        del HostExecutable.run  # that of its base is there again

    pids = ray.get([worker.check_alive.remote() for worker in mesh.workers])
    call_on_hosts(mesh, break_runs)
    result = function(ARRAY)
    call_on_hosts(mesh, mend_runs)
    with pytest.raises(errors.HostProgramError, match="could not be run on the hosts of the mesh: out of everything"):
        np.asarray(result)
    np.testing.assert_array_equal(np.asarray(kept), ARRAY * 2)
    assert ray.get([worker.check_alive.remote() for worker in mesh.workers]) == pids


def test_a_checkpoint_that_a_host_cannot_write_is_an_error_of_saving(mesh: Any, tmp_path: Path) -> None:
    array = doubling()(ARRAY)
    (tmp_path / "state").write_text("a file where the array's folder should be")
    with pytest.raises(errors.HostError, match="failed earlier: FileExistsError"):
        alpa.save_checkpoint(str(tmp_path), array, 1)


def test_a_checkpoint_that_is_not_there_is_an_error_of_its_values(mesh: Any, tmp_path: Path) -> None:
    function = doubling()
    alpa.save_checkpoint(str(tmp_path), {"x": function(ARRAY)}, 1)
    for part in (tmp_path / "state.x").iterdir():
        part.unlink()
    specs = {"x": function.get_last_executable().get_output_placement_specs()}
    restored = alpa.restore_checkpoint(str(tmp_path), 1, specs)
    with pytest.raises(errors.HostError, match=r"failed earlier: FileNotFoundError: .* holds no array"):
        np.asarray(restored["x"])


def test_a_function_that_is_called_on_the_hosts_fails_with_its_own_error(mesh: Any) -> None:
    def fail(backend: Any) -> None:
        raise LookupError(f"with {backend.device_count()} devices")

    with pytest.raises(LookupError, match="with 8 devices"):
        call_on_hosts(mesh, fail)
