"""A host's backend, where this process is the only host: parts in and out are those of arrays on a local mesh."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from alpa_cfp.spmd.distributed.host_client import HostClient, HostExecutable
from alpa_cfp.spmd.shardings.sharding import ArraySharding
from alpa_on_jax import errors
from alpa_on_jax.xla_extension import CompileOptions, XlaComputation
from unit.alpa_cfp.spmd.helpers import MESH_2X4, annotate, assert_parts_equal, load, lower, place, split

X = np.linspace(0, 1, 128, dtype=np.float32).reshape(8, 16)
BY_BOTH, BY_ROW = split(MESH_2X4, "y", "x"), split(MESH_2X4, "x", "")


def client(seed: int = 0) -> HostClient:
    return HostClient(jax.devices()[:8], seed)


def compiled(
    function: Callable[..., Any],
    inputs: Sequence[ArraySharding],
    donated: Sequence[bool] = (),
    backend: HostClient | None = None,
) -> HostExecutable:
    """`function` of as many arrays like `X` as there are `inputs`."""
    module = annotate(lower(function, [X] * len(inputs), donated), MESH_2X4, inputs)
    executable = (backend or client()).compile(XlaComputation(module), CompileOptions(8))
    assert isinstance(executable, HostExecutable)
    return executable


def parts_of(executable: HostExecutable, *values: np.ndarray) -> list[list[jax.Array]]:
    return [[shard.data for shard in array.addressable_shards] for array in place(executable, values)]


def test_the_parts_of_the_results_are_those_of_the_local_mesh() -> None:
    def function(x: Any, y: Any) -> Any:
        return x @ y.T, jnp.sum(x)

    executable = compiled(function, [BY_BOTH, BY_ROW])
    results = executable.execute_sharded_on_local_devices(parts_of(executable, X, X + 1))
    local = load(executable.module, executable.program)
    expected = local.run(place(local, (X, X + 1)))
    for parts, array in zip(results, expected, strict=True):
        assert [part.devices() for part in parts] == [shard.data.devices() for shard in array.addressable_shards]
        for part, shard in zip(parts, array.addressable_shards, strict=True):
            np.testing.assert_array_equal(np.asarray(part), np.asarray(shard.data))


def test_what_one_program_gives_the_next_one_takes() -> None:
    executable = compiled(lambda x: x + 1, [BY_BOTH])
    parts = parts_of(executable, X)
    for _ in range(3):
        parts = executable.execute_sharded_on_local_devices(parts)
    np.testing.assert_allclose(np.asarray(parts[0][0]), np.asarray(parts_of(executable, X + 3)[0][0]), rtol=1e-6)


def test_the_parts_of_a_donated_argument_are_gone() -> None:
    executable = compiled(lambda x: x + 1, [BY_BOTH], donated=[True])
    (parts,) = arguments = parts_of(executable, X)
    executable.execute_sharded_on_local_devices(arguments)
    assert all(part.is_deleted() for part in parts)


def test_a_program_runs_on_arrays_of_the_mesh_too() -> None:
    executable = compiled(lambda x: x * 2, [BY_BOTH])
    assert_parts_equal(executable.run(place(executable, (X,))), [X * 2])


def test_a_program_is_timed_on_zeros_again_and_again_although_it_donates() -> None:
    run = compiled(lambda x: x + 1, [BY_BOTH], donated=[True]).runner_with_dummy_inputs()
    for _ in range(3):
        run()


def test_a_seed_draws_what_it_draws_on_the_local_mesh() -> None:
    def draw(x: Any) -> Any:
        return x + jax.lax.rng_uniform(jnp.float32(0), jnp.float32(1), x.shape)

    executable = compiled(draw, [BY_BOTH], backend=client(seed=7))
    local = load(executable.module, executable.program)
    local._client.random_state.set_seed(7)
    for _ in range(2):
        (parts,) = executable.execute_sharded_on_local_devices(parts_of(executable, X))
        (array,) = local.run(place(local, (X,)))
        for part, shard in zip(parts, array.addressable_shards, strict=True):
            np.testing.assert_array_equal(np.asarray(part), np.asarray(shard.data))


def test_zeros_are_given_as_parts() -> None:
    (parts,) = client().compile_zeros([(2, 3)], [np.float32]).execute_sharded_on_local_devices([])
    assert [part.shape for part in parts] == [(2, 3)] * 8
    assert not any(np.any(np.asarray(part)) for part in parts)


def test_a_value_that_is_put_is_not_the_buffer_it_was_in() -> None:
    value = np.zeros((64, 64), np.float32)
    array = client().buffer_from_pyval(value, jax.devices()[3])
    value[:] = 1
    assert array.devices() == {jax.devices()[3]}
    assert not np.any(np.asarray(array))


def test_a_program_that_fails_is_no_runtime_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: Any, arguments: Any) -> Any:
        raise jax.errors.JaxRuntimeError("INTERNAL: no more")

    monkeypatch.setattr(HostExecutable, "run", run, raising=False)
    executable = compiled(lambda x: x + 1, [BY_BOTH])
    with pytest.raises(
        errors.HostProgramError, match="tested could not be run on the hosts of the mesh: INT"
    ) as raised:
        executable.execute_sharded_on_local_devices(parts_of(executable, X))
    assert not isinstance(raised.value, RuntimeError)


def test_a_module_that_cannot_be_compiled_says_which() -> None:
    module = annotate(lower(lambda x: x + 1, [X]), MESH_2X4, [BY_BOTH])
    with pytest.raises(errors.HostProgramError, match="tested could not be compiled on the hosts of the mesh"):
        HostExecutable(HostClient(jax.devices()[:3]), module)
