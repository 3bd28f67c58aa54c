"""Any small program, under any plan, on any mesh, gives what `jax.jit` gives on one device.

Programs are drawn over all kinds of ops (drawn_ops.py, drawn_reductions.py), and plans as the planners can choose them.
A difference beyond what rounding explains is a failure, and so is any exception: none of these programs is refused.

By default the same programs each time, in half a minute; with HYPOTHESIS_PROFILE=explore new ones, ALPA_CFP_PROGRAMS
in all (2,600), and with `--log-file=FILE --log-file-level=INFO` each is written down before it runs.
tools/draw_programs.py runs them in batches, each in a process of its own.
"""

import logging
import math
import os
import random
from collections.abc import Callable
from typing import Any

import alpa
import jax
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh

from alpa_cfp import autoshard
from alpa_cfp.spmd.compile.executable import Client, MeshExecutable
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import partition
from alpa_cfp.spmd.partition.xla import leave_to_xla
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp_bench.workloads.meshes import logical_mesh
from alpa_on_jax.xla_extension.planner import request
from integration.drawn_programs import Program, programs
from integration.drawn_reductions import CONTRACTIONS, KINDS
from integration.planned import ESTIMATE, DrawnPlan
from unit.alpa_cfp.spmd.helpers import annotate, annotate_randomly, lower, place, random_sharding

logger = logging.getLogger(__name__)

EXPLORES = os.environ.get("HYPOTHESIS_PROFILE") == "explore"
PROGRAMS = int(os.environ.get("ALPA_CFP_PROGRAMS", "2600"))
MESHES = ("2x2", "1x2", "1x4", "1x8", "2x4")


def drawn(
    by_default: int, share: float, first: tuple[str, ...] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A test of programs, meshes and seeds of plans; `share` is its part of all programs where new ones are drawn."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        given_all = given(program=programs(KINDS, first), mesh=st.sampled_from(MESHES), seed=st.integers(0, 2**16))
        return settings(
            max_examples=max(1, round(share * PROGRAMS)) if EXPLORES else by_default,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
        )(given_all(test))

    return decorate


def assert_right(program: Program, results: Any) -> None:
    """Each device's part of each result is what one device computes, but for rounding."""
    expected = jax.device_get(jax.jit(program.function())(*program.arguments()))
    assert len(results) == len(expected) == len(program.results)
    for value, result, wanted in zip(program.results, results, expected, strict=True):
        assert (result.shape, result.dtype) == (wanted.shape, wanted.dtype)
        wide = np.complex128 if value.kind == "c" else np.float64
        for shard in result.addressable_shards:
            got, here = (np.asarray(array).astype(wide) for array in (shard.data, wanted[shard.index]))
            message = f"{value} on device {shard.device.id}"
            np.testing.assert_allclose(got, here, rtol=0, atol=value.error, err_msg=message)


def run(program: Program, module: HloModule, mesh: str, *, by_xla: bool) -> None:
    """Run an annotated module, partitioned by Shardy's passes where they cover it, or by XLA."""
    module.partitioned = leave_to_xla(module, "it is to") if by_xla else partition(module)
    logger.info("partitioned by %s on %s", module.partitioned.partitioner, mesh)
    executable = MeshExecutable(Client(jax.devices()), module)
    assert_right(program, executable.execute_sharded_on_local_devices(place(executable, program.arguments())))


def begin(how: str, program: Program, mesh: str, seed: int) -> HloModule:
    """The module of a program that is to be run; it is written down before."""
    logger.info("%s on %s, seed %d, of %s:\n%s", how, mesh, seed, ", ".join(program.kinds), program)
    return lower(program.function(), program.arguments())


def shape(mesh: str) -> LogicalMesh:
    return LogicalMesh(tuple(map(int, mesh.split("x"))))


@drawn(40, 0.3, CONTRACTIONS)
def test_a_program_whose_blocks_have_any_of_their_strategies_is_right(program: Program, mesh: str, seed: int) -> None:
    module = begin("strategies", program, mesh, seed)
    plan = DrawnPlan(seed=seed, kept=True)
    plan.annotate_module(module, request(logical_mesh(mesh), None, None, None))
    run(program, module, mesh, by_xla=seed % 4 == 3)


@drawn(30, 0.25)
def test_a_program_whose_inputs_have_any_shardings_is_right(program: Program, mesh: str, seed: int) -> None:
    module, rng = begin("inputs", program, mesh, seed), random.Random(seed)
    inputs = [random_sharding(rng, shape(mesh), value.shape) for value in program.inputs]
    outputs = [random_sharding(rng, shape(mesh), value.shape) for value in program.results]
    annotate(module, shape(mesh), inputs, outputs if seed % 2 else None)
    run(program, module, mesh, by_xla=seed % 4 == 3)


@drawn(30, 0.25)
def test_a_program_whose_values_all_have_any_shardings_is_right(program: Program, mesh: str, seed: int) -> None:
    # As a solver might choose them.
    module = annotate_randomly(begin("values", program, mesh, seed), shape(mesh), seed)
    module.solved = True
    run(program, module, mesh, by_xla=seed % 4 == 3)


@drawn(10, 0.1, CONTRACTIONS)
def test_a_program_that_alpas_ilp_has_solved_is_right(program: Program, mesh: str, seed: int) -> None:
    begin("ilp", program, mesh, seed)
    method = alpa.ShardParallel(logical_mesh(mesh))
    assert_right(program, alpa.parallelize(program.function(), method=method, batch_argnums=())(*program.arguments()))


@drawn(10, 0.1, CONTRACTIONS)
def test_a_program_that_autoshard_has_planned_is_right(program: Program, mesh: str, seed: int) -> None:
    begin("autoshard", program, mesh, seed)
    function, devices = program.function(), shape(mesh).shape
    on = Mesh(np.array(jax.devices()[: math.prod(devices)]).reshape(devices), ("data", "model"))
    plan = autoshard(function, on, *program.arguments(), option=ESTIMATE)
    assert_right(program, plan.jit(function)(*program.arguments()))
