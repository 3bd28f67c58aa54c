"""Programs that need other meshes: cut at the exchanges, their phases compute what the program computes."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa.pipeline_parallel.apply_grad import cross_mesh_allreduce_p
from alpa.pipeline_parallel.primitive_def import pipeline_p
from alpa.util import mesh_ids_hash
from hypothesis import given
from hypothesis import strategies as st
from jax.extend.core import Literal

from alpa_cfp.spmd.compile.executable import MeshExecutable
from alpa_cfp.spmd.compile.phased_executable import PhasedExecutable
from alpa_cfp.spmd.compile.phases import needs_exchange, split_at_exchanges
from alpa_cfp.spmd.distributed.host_array import HostArray
from alpa_cfp.spmd.distributed.host_client import HostClient, HostPhases
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.module.stages import slice_stages
from alpa_cfp.spmd.shardings.sharding import ArraySharding
from alpa_cfp.spmd.simplify import simplify
from alpa_on_jax import errors
from alpa_on_jax.ray_mesh.transport import PeerLostError
from alpa_on_jax.xla_extension import Client, CompileOptions, XlaComputation, run_spmd_partitioner
from unit.alpa_cfp.spmd.helpers import (
    MESH_2X2,
    annotate,
    annotate_randomly,
    annotate_values,
    assert_parts_equal,
    lower,
    place,
    random_sharding,
    split,
    values_of,
)

pytestmark = pytest.mark.slow

X, W = (np.linspace(-1, 2, 64, dtype=np.float32).reshape(8, 8) * scale for scale in (1, 3))
ALL_MESHES = (0, 1)
SUM, AND, OR = (f"{name};{mesh_ids_hash(ALL_MESHES).decode()}" for name in ("SUM", "AND", "OR"))


def over_meshes(value: jax.Array, primitive: Any = jax.lax.add_p) -> jax.Array:
    """A scalar as it is when all meshes have given theirs."""
    return cross_mesh_allreduce_p.bind(value, type=primitive, group_meshes=ALL_MESHES)


def exchange(what: str, value: Any) -> Any:
    """What other meshes make of a scalar in these tests: something else, that is different for each operation."""
    if what == SUM:
        return value * 2 + 1
    return {AND: value & False, OR: value | True}[what]


def serial(function: Callable[..., Any], arguments: Sequence[Any]) -> list[np.ndarray]:
    """The results of the whole program on one device, with the exchange in its place."""
    jaxpr = jax.make_jaxpr(function)(*arguments)
    what = {jax.lax.add_p: SUM, jax.lax.and_p: AND, jax.lax.or_p: OR}

    def evaluated(*values: Any) -> list[Any]:
        known = dict(zip(jaxpr.jaxpr.invars, values, strict=True))
        known.update(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, Literal) else known[atom]

        for eqn in jaxpr.eqns:
            inputs = [read(atom) for atom in eqn.invars]
            if eqn.primitive is cross_mesh_allreduce_p:
                results = [exchange(what[eqn.params["type"]], inputs[0])]
            else:
                results = eqn.primitive.bind(*inputs, **eqn.params)
                results = results if eqn.primitive.multiple_results else [results]
            known.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.jaxpr.outvars]

    return values_of(evaluated, arguments)


def client(devices: int = 4, kind: type[Client] = Client) -> Any:
    made = kind(jax.devices()[:devices])
    made.exchange = exchange
    return made


def compiled(module: HloModule, backend: Client | None = None) -> PhasedExecutable:
    executable = (backend or client()).compile(XlaComputation(module), CompileOptions(4))
    assert isinstance(executable, PhasedExecutable)
    return executable


def run(module: HloModule, arguments: Sequence[Any]) -> list[jax.Array]:
    executable = compiled(module)
    return executable.run(place(executable.last, [*arguments, *_rest(executable, arguments)])[: len(arguments)])


def _rest(executable: PhasedExecutable, arguments: Sequence[Any]) -> list[np.ndarray]:
    """Zeros for what the last phase takes beside the arguments."""
    return [np.zeros(s.dims, s.dtype) for s in executable.last.module.shape.parameters[len(arguments) :]]


def clipped(x: jax.Array, w: jax.Array) -> tuple[jax.Array, ...]:
    """An update by the global norm: one exchange."""
    norm = over_meshes(jnp.sum(x * x))
    return w - x / jnp.sqrt(norm), norm


def twice(x: jax.Array, w: jax.Array) -> tuple[jax.Array, ...]:
    """Two exchanges side by side, and one that needs the first of them."""
    product = x @ w
    norm, finite = over_meshes(jnp.sum(product * product)), over_meshes(jnp.all(x < 3), jax.lax.and_p)
    scaled = product / (1 + norm)
    other = over_meshes(jnp.max(scaled) + norm)
    return jnp.where(finite, w, scaled * other), scaled, norm, finite


INPUTS = [split(MESH_2X2, "x", ""), split(MESH_2X2, "", "y")]


def marked(function: Callable[..., Any], donated: Sequence[bool] = ()) -> HloModule:
    return annotate(lower(function, (X, W), donated), MESH_2X2, INPUTS)


@pytest.mark.parametrize(("function", "exchanged"), [(clipped, [1, 0]), (twice, [2, 1, 0])])
def test_the_phases_one_after_the_other_compute_what_the_program_computes(
    function: Callable[..., Any], exchanged: list[int]
) -> None:
    module = marked(function)
    assert [len(phase.exchanged) for phase in split_at_exchanges(module)] == exchanged
    assert_parts_equal(run(module, (X, W)), serial(function, (X, W)))


# Integers, whose sums are the same in any order, and wrap.
N, M = (np.arange(64, dtype=np.int32).reshape(8, 8) * factor - 9 for factor in (3, 7))


@st.composite
def programs(draw: st.DrawFn) -> Callable[..., Any]:
    """A random program of two matrices with exchanges, also some that need others."""
    seed, length = draw(st.integers(0, 2**32 - 1)), draw(st.integers(3, 14))

    def function(n: jax.Array, m: jax.Array) -> list[jax.Array]:
        rng = random.Random(seed)
        matrices, scalars, flags = [n, m], [jnp.int32(5)], [jnp.array(True)]
        for _ in range(length):
            kind, a, b = rng.randrange(9), rng.choice(matrices), rng.choice(matrices)
            scalar, flag = rng.choice(scalars), rng.choice(flags)
            if kind == 0:
                scalars.append(over_meshes(jnp.sum(a ^ 21) + scalar))
            elif kind == 1:
                flags.append(over_meshes(jnp.all(a < scalar) & flag, rng.choice([jax.lax.and_p, jax.lax.or_p])))
            elif kind == 2:
                scalars.append(over_meshes(scalar))
            elif kind == 3:
                matrices.append((a @ b) * scalar)
            elif kind == 4:
                matrices.append(jnp.where(flag, a, b.T))
            elif kind == 5:
                matrices.append((a ^ b) + scalar)
            elif kind == 6:
                matrices.append(jax.lax.cond(flag, lambda a=a, b=b: a + b, lambda a=a, scalar=scalar: a * scalar))
            elif kind == 7:
                matrices.append(jnp.sort(a, axis=rng.randrange(2)) - jnp.max(b, axis=0))
            else:
                scalars.append(scalar ^ jnp.min(a))
        total = over_meshes(jnp.sum(matrices[-1]))
        return [matrices[-1] * total, *rng.sample(matrices, 2), rng.choice(scalars), rng.choice(flags)]

    return function


@given(programs(), st.integers(0, 1000))
def test_the_phases_of_any_program_compute_what_it_computes(function: Callable[..., Any], seed: int) -> None:
    rng = random.Random(seed)
    inputs = [random_sharding(rng, MESH_2X2, N.shape) for _ in range(2)]
    module = annotate(lower(function, (N, M)), MESH_2X2, inputs)
    assert_parts_equal(run(module, (N, M)), serial(function, (N, M)))


@given(programs(), st.integers(0, 1000))
def test_whatever_the_sharding_of_each_value_the_phases_compute_what_the_program_computes(
    function: Callable[..., Any], seed: int
) -> None:
    module = annotate_randomly(lower(function, (N, M)), MESH_2X2, seed)
    module.solved = True
    run_spmd_partitioner(module, CompileOptions(4))
    assert_parts_equal(run(module, (N, M)), serial(function, (N, M)))


def count(module: HloModule, name: str) -> int:
    return module.to_string().count(f"{name} ") + module.to_string().count(f'"{name}"')


def test_a_contraction_that_two_phases_need_is_done_once() -> None:
    phases = split_at_exchanges(marked(twice))
    assert [count(phase.module, "stablehlo.dot_general") for phase in phases] == [1, 0, 0]


def test_what_is_elementwise_is_computed_again_so_that_nothing_is_kept() -> None:
    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        mean = x * 0.25
        return w - mean / over_meshes(jnp.sum(mean * mean))

    first, last = split_at_exchanges(marked(function))
    assert len(first.module.shape.results) == 1
    assert count(last.module, "stablehlo.multiply") == 1


def test_a_move_between_devices_that_two_phases_need_is_done_once() -> None:
    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        moved = jnp.negative(x)
        return w - moved / over_meshes(jnp.sum(moved))

    def choose(op: Any, shape: Sequence[int]) -> ArraySharding:
        if len(shape) != 2:
            return _whole(shape)
        return split(MESH_2X2, "y", "") if op is None else split(MESH_2X2, "x", "")

    first, last = split_at_exchanges(annotate_values(lower(function, (X, W)), MESH_2X2, choose))
    assert [shape.dims for shape in first.module.shape.results] == [(), (8, 8)]
    assert first.module.output_shardings == (_whole(()), split(MESH_2X2, "x", ""))
    assert count(last.module, "stablehlo.negate") == 0


def _whole(shape: Sequence[int]) -> ArraySharding:
    return ArraySharding.replicated(MESH_2X2, len(shape))


def test_random_numbers_that_two_phases_need_are_drawn_once() -> None:
    def function(x: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
        noise = jax.lax.rng_uniform(jnp.float32(0), jnp.float32(1), x.shape)
        return over_meshes(jnp.sum(noise)), noise

    total, noise = run(marked(function), (X, W))
    np.testing.assert_allclose(np.asarray(total), np.asarray(noise).sum() * 2 + 1, rtol=1e-5)


def test_only_the_last_phase_takes_the_buffers_of_arguments() -> None:
    module = marked(clipped, donated=(False, True))
    phases = split_at_exchanges(module)
    assert [phase.module.donated for phase in phases] == [(False, False), (False, True, False)]
    executable = compiled(module)
    x, w, _ = place(executable.last, (X, W, np.float32(0)))
    assert_parts_equal(executable.run([x, w]), serial(clipped, (X, W)))
    assert (x.is_deleted(), w.is_deleted()) == (False, True)


def test_an_exchange_that_fails_has_taken_no_buffer() -> None:
    def lost(what: str, value: np.ndarray) -> np.ndarray:
        raise PeerLostError(1, "waiting for", "it is gone")

    backend = client()
    backend.exchange = lost
    executable = compiled(marked(clipped, donated=(True, True)), backend)
    arguments = place(executable.last, (X, W, np.float32(0)))[:2]
    with pytest.raises(PeerLostError):
        executable.run(arguments)
    assert not any(argument.is_deleted() for argument in arguments)


def test_aliases_and_results_that_the_user_has_set_are_those_of_the_last_phase() -> None:
    module = marked(clipped)
    module.setup_alias((0,), 1, ())
    first, last = split_at_exchanges(module)
    assert (first.module.aliases, last.module.aliases) == ((), ((0, 1),))
    assert last.module.name == module.name
    assert first.module.name != module.name


def test_no_exchange_overtakes_another_although_it_could() -> None:
    """The other mesh may need, for an exchange, what this one does not."""

    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        first = over_meshes(jnp.sum(x))
        flag = over_meshes(jnp.sum(x) / first < 1, jax.lax.and_p)
        last = over_meshes(jnp.any(w > 2), jax.lax.or_p)
        return jnp.where(flag & last, x, w)

    assert [phase.exchanged for phase in split_at_exchanges(marked(function))] == [(SUM,), (AND, OR), ()]


def test_an_exchange_stays_when_nothing_uses_it_or_another_is_equal() -> None:
    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        over_meshes(jnp.sum(x))
        return over_meshes(jnp.sum(w)) + over_meshes(jnp.sum(w)) + x

    module = lower(function, (X, W))
    module.bytecode, _ = mlir.edit(module.bytecode, simplify)
    assert [len(phase.exchanged) for phase in split_at_exchanges(annotate(module, MESH_2X2, INPUTS))] == [3, 0]


def test_a_stage_keeps_an_exchange_that_nothing_in_it_uses() -> None:
    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        (x,) = pipeline_p.bind(x, name="first", mark_type="start")
        over_meshes(jnp.sum(x))
        (y,) = pipeline_p.bind(x + 1, name="first", mark_type="end")
        y, w = pipeline_p.bind(y, w, name="second", mark_type="start")
        (z,) = pipeline_p.bind(y * w, name="second", mark_type="end")
        return z

    (_, first), (_, second) = slice_stages(marked(function))
    assert [phase.exchanged for phase in split_at_exchanges(first)] == [(SUM,), ()]
    assert split_at_exchanges(second) == ()


def test_a_program_without_exchanges_has_no_phases() -> None:
    module = marked(lambda x, w: x @ w)
    assert split_at_exchanges(module) == ()
    run_spmd_partitioner(module, CompileOptions(4))
    assert (module.phases, module.partitioned is None) == ((), False)
    assert isinstance(client().compile(XlaComputation(module), CompileOptions(4)), MeshExecutable)


def test_an_operation_that_only_has_the_marks_name_is_no_exchange() -> None:
    def function(x: jax.Array, w: jax.Array) -> jax.Array:
        with jax.named_scope("alpa.cross_mesh"):
            return x + w

    lowered = jax.jit(function).lower(X, W)
    module = annotate(HloModule.from_stablehlo("named", lowered.as_text(debug_info=True)), MESH_2X2, INPUTS)
    assert needs_exchange(module)
    assert split_at_exchanges(module) == ()


def test_a_module_is_partitioned_phase_by_phase_and_sent_so() -> None:
    module = marked(clipped)
    run_spmd_partitioner(module, CompileOptions(4))
    assert module.partitioned is None
    assert all(phase.module.partitioned is not None for phase in module.phases)
    back = HloModule.from_serialized(module.as_serialized_hlo_module_proto())
    assert back == module
    assert_parts_equal(run(back, (X, W)), serial(clipped, (X, W)))


def test_the_text_has_all_phases_and_names_each_exchange_once() -> None:
    module = marked(twice)
    run_spmd_partitioner(module, CompileOptions(4))
    (loaded,) = compiled(module).hlo_modules()
    for text in (module.to_string(), loaded.to_string()):
        assert text.count("CrossMeshAllReduce") == 3
        assert (text.count('backend_config="SUM;0$1$"'), text.count('backend_config="AND;0$1$"')) == (2, 1)
    assert loaded.to_string().count("ENTRY") == 3


def test_a_client_that_knows_no_other_mesh_says_so() -> None:
    executable = compiled(marked(clipped), Client(jax.devices()[:4]))
    with pytest.raises(errors.InternalError, match=r"needs what other meshes compute \(SUM;0\$1\$\), but runs on"):
        executable.run(place(executable.last, (X, W, np.float32(0)))[:2])


def test_phases_are_timed_on_zeros_again_and_again_without_other_meshes() -> None:
    executable = compiled(marked(twice, donated=(True, True)), Client(jax.devices()[:4]))
    run_once = executable.runner_with_dummy_inputs()
    for _ in range(3):
        run_once()


def test_the_size_is_that_of_the_largest_phase_and_parameters_are_those_of_the_program() -> None:
    executable = compiled(marked(twice))
    (loaded,) = executable.hlo_modules()
    assert [shape.dims for shape in loaded.parameter_shapes()] == [(4, 8), (8, 4)]
    assert (loaded.name, loaded.grad_sync_text()) == ("tested", "")
    assert executable.total_allocation_size() >= 2 * 4 * 8 * 4
    executable.delete()


def host_arguments(executable: Any) -> list[list[jax.Array]]:
    arrays = place(executable.last, (X, W, np.float32(0)))[:2]
    return [[shard.data for shard in array.addressable_shards] for array in arrays]


def test_a_host_takes_and_gives_its_parts() -> None:
    # The new weights lie as the old ones, so that they can take their place.
    module = annotate(lower(clipped, (X, W)), MESH_2X2, INPUTS, [INPUTS[1], _whole(())])
    executable: Any = compiled(module, client(kind=HostClient))
    assert isinstance(executable, HostPhases)
    results = executable.execute_sharded_on_local_devices(host_arguments(executable))
    assert all(isinstance(result, HostArray) for result in results)
    assert_parts_equal([result.whole for result in results], serial(clipped, (X, W)))
    again = executable.execute_sharded_on_local_devices([host_arguments(executable)[0], results[0]])
    assert_parts_equal([result.whole for result in again], serial(clipped, (X, np.asarray(results[0].whole))))


def test_a_host_tells_of_a_mesh_that_is_lost_as_such() -> None:
    def lost(what: str, value: np.ndarray) -> np.ndarray:
        raise PeerLostError(1, "waiting for", "it is gone")

    backend = client(kind=HostClient)
    executable: Any = compiled(marked(clipped), backend)
    backend.exchange = lost
    with pytest.raises(PeerLostError, match="waiting for rank 1: it is gone"):
        executable.execute_sharded_on_local_devices(host_arguments(executable))


def test_a_phase_that_fails_on_a_host_is_no_runtime_error(monkeypatch: pytest.MonkeyPatch) -> None:
    executable: Any = compiled(marked(clipped), client(kind=HostClient))
    arguments = host_arguments(executable)

    def fails(self: Any, arguments: Any) -> Any:
        raise jax.errors.JaxRuntimeError("INTERNAL: no more")

    monkeypatch.setattr(MeshExecutable, "run", fails)
    with pytest.raises(errors.HostProgramError, match="tested could not be run on the hosts of the mesh: INT"):
        executable.execute_sharded_on_local_devices(arguments)


def test_phases_that_cannot_be_compiled_say_which_program() -> None:
    with pytest.raises(errors.HostProgramError, match="tested could not be compiled on the hosts of the mesh"):
        compiled(marked(clipped), client(devices=3, kind=HostClient))
