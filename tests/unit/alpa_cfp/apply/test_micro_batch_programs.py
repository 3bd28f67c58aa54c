"""The programs of a micro-batch are those of alpa: the marked stages, without the update and its sums."""

import jax
import jax.numpy as jnp
import numpy as np

from alpa_cfp.analysis.graph import BARRIER
from alpa_cfp.apply.micro_batch_programs import micro_batch_programs
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.spmd.compile.executable import Client, MeshExecutable
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import partition
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from unit.alpa_cfp.spmd.helpers import annotate, lower, marked, run, split, values_of

MESH_1X2 = LogicalMesh((1, 2))
X, W = (np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8) * scale for scale in (1, 3))
ACCUMULATED = np.ones((8, 8), np.float32)


def _gradient(x: jax.Array, w: jax.Array, accumulated: jax.Array) -> jax.Array:
    return accumulated + x.T @ (x @ w)


def _step(x: jax.Array, w: jax.Array, accumulated: jax.Array) -> jax.Array:
    gradients = jax.lax.optimization_barrier((_gradient(*jax.lax.optimization_barrier((x, w, accumulated))),))
    weights, gradient = jax.lax.optimization_barrier((w, *gradients))
    return jax.lax.optimization_barrier((weights - gradient,))[0]


def data_parallel(update: str = "0_apply_grad") -> HloModule:
    names = ["gradient$start", "gradient$end", f"{update}$start", f"{update}$end"]
    shardings = [split(MESH_1X2, "y", ""), split(MESH_1X2, "", ""), split(MESH_1X2, "", "")]
    return annotate(marked(lower(_step, (X, W, ACCUMULATED)), names), MESH_1X2, shardings)


def programs_of(module: HloModule) -> list[HloModule]:
    return micro_batch_programs(module, AnalysedProgram(module))


def _skipping(x: jax.Array, w: jax.Array, accumulated: jax.Array, skipped: jax.Array) -> tuple[jax.Array, jax.Array]:
    x, w, accumulated, skipped = jax.lax.optimization_barrier((x, w, accumulated, skipped))
    gradient, output = jax.lax.optimization_barrier((accumulated + jnp.sin(x), skipped + x @ w))
    before, gradient = jax.lax.optimization_barrier((accumulated, gradient))
    return *jax.lax.optimization_barrier((before - gradient,)), output


def test_what_is_added_to_a_skip_connection_is_summed_for_each_micro_batch() -> None:
    names = ["forward$start", "forward$end", "0_apply_grad$start", "0_apply_grad$end"]
    split_inside, whole = split(MESH_1X2, "", "y"), split(MESH_1X2, "", "")
    shardings = [split_inside, split(MESH_1X2, "y", ""), split_inside, whole]
    module = marked(lower(_skipping, (X, W, ACCUMULATED, X)), names)
    (program,) = programs_of(annotate(module, MESH_1X2, shardings))
    assert program.partitioned is not None
    assert [each.kind for each in program.partitioned.collectives] == ["all-reduce"]
    assert program.aliases == ((0, 2),)


def test_the_update_is_not_run_again() -> None:
    (program,) = programs_of(data_parallel())
    assert program.name == "tested-gradient"
    assert [shape.dims for shape in program.shape.parameters] == [(8, 8)] * 3


def test_gradients_are_not_summed_over_devices_again() -> None:
    assert [each.kind for each in partition(data_parallel()).collectives] == ["all-reduce"]
    (program,) = programs_of(data_parallel())
    assert program.partitioned is not None
    assert program.partitioned.collectives == ()
    assert MeshExecutable(Client(jax.devices()[:2]), program).grad_sync_text() == ""


def test_gradients_are_added_up_in_place() -> None:
    (program,) = programs_of(data_parallel())
    assert program.aliases == ((0, 2),)


def test_what_is_run_again_gives_each_devices_part_of_the_gradient() -> None:
    (program,) = programs_of(data_parallel())
    assert program.partitioned is not None
    # What the devices have accumulated are parts, too: as run here, each starts with all of it.
    (parts,) = run(program, program.partitioned, (X, W, ACCUMULATED))
    (gradient,) = values_of(_gradient, (X, W, 2 * ACCUMULATED))
    np.testing.assert_allclose(sum(np.asarray(shard.data) for shard in parts.addressable_shards), gradient, rtol=1e-5)


def test_where_no_update_is_marked_nothing_is_known_of_it() -> None:
    assert programs_of(data_parallel(update="another")) == []


def test_the_ops_of_the_update_are_those_behind_its_mark() -> None:
    program = AnalysedProgram(data_parallel())
    names = [program.blocks.graph.ops[op].name for op in sorted(program.update)]
    assert [name for name in names if name != BARRIER] == ["stablehlo.subtract"]
    assert AnalysedProgram(data_parallel(update="another")).update == frozenset()
