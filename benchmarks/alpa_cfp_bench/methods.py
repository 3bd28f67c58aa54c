"""The methods that are compared: takes a case and a method's name, gives back the planned, compiled step.

Invariants: all steps of a case start from the same values; the batch lies on the mesh already, or, with micro-batches,
comes from the host's memory in each step, whatever the method is.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import alpa
import jax
import jax.numpy as jnp
import numpy as np
from alpa.parallel_method import ParallelMethod
from alpa.shard_parallel import compile_executable
from alpa.util import jaxpr_to_hlo, trace_jaxpr_with_micro_batch
from flax import linen as nn
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpa_cfp import CFPOption, CFPShardParallel, Plan, autoshard
from alpa_cfp_bench import cluster
from alpa_cfp_bench.case import (
    BY_JIT,
    CFP,
    FLEXFLOW,
    FLEXFLOW_OUR_COSTS,
    ILP,
    ILP_AGAIN,
    ILP_GIVEN,
    MAXTEXT,
    PROPAGATION,
    TOFU,
    TOFU_OUR_COSTS,
    Case,
)
from alpa_cfp_bench.plan_callback import with_callback
from alpa_cfp_bench.programs import (
    Program,
    Traffic,
    memory_bytes,
    partitioner_of,
    step_text,
    traffic_of_step,
    traffic_of_text,
)
from alpa_cfp_bench.rivals.option import FlexFlowOption, RivalOption, TofuOption, Whose
from alpa_cfp_bench.workloads.meshes import logical_mesh
from alpa_cfp_bench.workloads.model import Model, step_of_parts, training_step
from alpa_cfp_bench.workloads.models import abstract, build
from alpa_cfp_bench.workloads.shardings import LOGICAL_AXIS_RULES, batch_spec, has_style, manual_sharding, state_specs
from alpa_cfp_bench.workloads.sizes import MESH_AXES, mesh_axes, mesh_shape
from alpa_on_jax.xla_extension import planner

# Those that split nothing but the batch, over all devices.
_BATCH_ONLY = ("data-parallel", "zero2", "zero3", PROPAGATION)
# Shardings by hand, which are styles of `workloads.shardings`.
_BY_HAND = ("megatron", MAXTEXT)


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of Alpa's ILP.

    Attributes:
        mesh: The shape of the logical mesh, such as "2x4".
        mixed: Whether values may also be sharded along one axis of all devices (`allow_mixed_mesh_shape`).
    """

    mesh: str
    mixed: bool = False

    def __str__(self) -> str:
        return f"{self.mesh} mixed" if self.mixed else self.mesh


@dataclass(frozen=True, slots=True)
class Planned:
    """A step that is planned and compiled.

    Attributes:
        program: The step with its state.
        planning_s: What planning and compiling took, in seconds.
        memory_bytes: What one device needs.
        traffic: What a step communicates.
        text: Equal for equal programs, byte for byte; None where nothing is known.
        plan: CFP's plan; None of another method.
    """

    program: Program
    planning_s: float
    memory_bytes: int
    traffic: tuple[Traffic, ...]
    text: str | None
    plan: Plan | None = None


def misfit(case: Case, method: str) -> str:
    """Why a method cannot run a case; "" where it can. Needs no devices."""
    if len(mesh_shape(case.mesh)) > len(MESH_AXES) and (case.num_micro_batches or method not in (CFP, PROPAGATION)):
        if method == MAXTEXT:
            return "its rules are for two axes"
        own = "its micro-batches are Alpa's" if method in (CFP, PROPAGATION) else "it is Alpa's"
        return f"{own}, whose meshes have two axes"
    parts = case.num_devices if method in _BATCH_ONLY else mesh_shape(case.mesh)[0] if method in _BY_HAND else 1
    if case.micro_batch % parts:
        return f"{case.micro_batch} samples cannot be split into {parts} equal parts"
    if method not in _BY_HAND:
        return ""
    model, sizes = abstract(case.model, case.size), dict(zip(MESH_AXES, mesh_shape(case.mesh), strict=True))
    if not has_style(model, method):
        return "there are rules for LLaMA only"
    specs = jax.tree.leaves(state_specs(model, method), is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))
    for (path, leaf), spec in zip(jax.tree_util.tree_leaves_with_path(model.state), specs, strict=True):
        for size, axis in zip(leaf.shape, spec, strict=False):
            if axis is not None and size % (count := sizes[axis]):
                name = jax.tree_util.keystr(path, simple=True, separator="/")
                return f"{name} has a dim of {size}, which cannot be split into {count} equal parts"
    return ""


def plan_method(
    case: Case, method: str, option: CFPOption, devices: Any = None, setting: Setting | None = None
) -> Planned:
    """Plan and compile a case by a method.

    Args:
        case: What is to run.
        method: A key of `ALL_METHODS`.
        option: How CFP plans.
        devices: The case's logical mesh; None for one of this process' devices, which those `BY_JIT` always take.
        setting: Of Alpa's ILP; None for the case's mesh with Alpa's default options.

    Raises:
        KeyError: there is no such method.
    """
    if method in BY_JIT:
        return _by_jit(case, method)
    if len(mesh_shape(case.mesh)) > len(MESH_AXES):
        return _by_autoshard(case, option)
    plans: list[Plan] = []
    option = with_callback(option, plans.append)
    planned = _by_alpa(case, _alpa_method(case, method, option, devices, setting or Setting(case.mesh)))
    if method != CFP:
        return planned
    (plan,) = plans
    return replace(planned, plan=plan)


def plan_only(case: Case, option: CFPOption, devices: Any = None) -> Plan:
    """CFP's plan for a case, without compiling the step; only shapes are looked at, so it may be as large as it likes.

    Args:
        case: What is to run.
        option: How CFP plans.
        devices: The case's logical mesh; None for one of this process' devices.

    Raises:
        CFPError: as `CFPOption` says.
    """
    model = abstract(case.model, case.size)
    if len(mesh_shape(case.mesh)) > len(MESH_AXES):
        step = training_step(model, jax.value_and_grad)
        return autoshard(step, _jax_mesh(case), model.state, model.batch, donate_argnums=0, option=option)
    method = _PlanningMethod(devices or logical_mesh(case.mesh), case.num_micro_batches, option)
    return parallelized(model, method).get_executable(model.state, model.batch)


class _PlanningMethod(ParallelMethod):
    """Shard parallelism that stops where alpa's auto-sharding pass begins: the plan takes the executable's place."""

    def __init__(self, devices: Any, num_micro_batches: int | None, option: CFPOption) -> None:
        self._devices, self._num_micro_batches, self._option = devices, num_micro_batches, option

    def compile_executable(
        self,
        fun: Any,
        in_tree: Any,
        out_tree_thunk: Any,
        static_argnums: Any,
        donated_invars: Sequence[bool],
        batch_invars: Sequence[bool],
        *avals: Any,
    ) -> Plan:
        """Trace and lower a step as `alpa.shard_parallel.compile_executable` does, and plan it."""
        del in_tree, out_tree_thunk, static_argnums
        count, donated = self._num_micro_batches, tuple(donated_invars)
        split = batch_invars if count else (False,) * len(avals)
        jaxpr, _ = trace_jaxpr_with_micro_batch(fun, split, count or 1, avals)
        if count:
            jaxpr, _, _, num_grads = compile_executable.add_gradient_accumulation(jaxpr, count)
            donated += (False,) * num_grads
        module = jaxpr_to_hlo(f"{fun.__name__}_shard_parallel", jaxpr, donated).get_module()
        return self._option.plan_module(module, planner.request(self._devices, count, None, None))


def _alpa_method(case: Case, name: str, option: CFPOption, devices: Any, setting: Setting) -> Any:
    devices, count = devices or logical_mesh(case.mesh), case.num_micro_batches

    def ilp() -> Any:
        mesh = (
            devices if setting.mesh == case.mesh else devices.physical_mesh.get_logical_mesh(mesh_shape(setting.mesh))
        )
        asked = alpa.AutoShardingOption(allow_mixed_mesh_shape=setting.mixed)
        return alpa.ShardParallel(mesh, count, auto_sharding_option=asked)

    def rival(kind: type[RivalOption], whose: Whose) -> Callable[[], Any]:
        return lambda: alpa.ShardParallel(devices, count, kind(options=option.plan_options, whose=whose))

    makers: dict[str, Callable[[], Any]] = {
        CFP: lambda: CFPShardParallel(devices, count, option),
        **dict.fromkeys((ILP, ILP_GIVEN, ILP_AGAIN), ilp),
        "data-parallel": lambda: alpa.DataParallel(devices, count),
        "zero2": lambda: alpa.Zero2Parallel(devices, count),
        "zero3": lambda: alpa.Zero3Parallel(devices, count),
        "megatron": lambda: alpa.ShardParallel(
            devices,
            count,
            auto_sharding_option=alpa.AutoShardingOption(enable_auto_sharding=False),
            manual_sharding_option=manual_sharding(build(case.model, case.size), "megatron"),
        ),
        FLEXFLOW: rival(FlexFlowOption, "own"),
        FLEXFLOW_OUR_COSTS: rival(FlexFlowOption, "ours"),
        TOFU: rival(TofuOption, "own"),
        TOFU_OUR_COSTS: rival(TofuOption, "ours"),
    }
    return makers[name]()


def parallelized(model: Model, method: Any) -> Any:
    """The training step of a model by a method of alpa's: (state, batch) -> (new state, loss)."""
    # Alpa takes what is no array, shapes for one, as static unless it is told.
    return alpa.parallelize(
        training_step(model, alpa.value_and_grad),
        static_argnums=(),
        donate_argnums=(0,),
        batch_argnums=(1,),
        method=method,
    )


def _by_alpa(case: Case, method: Any) -> Planned:
    model = build(case.model, case.size)
    step = parallelized(model, method)
    # A step donates its state, and the model's own is needed again.
    state = jax.tree.map(jnp.copy, model.state)
    started = time.perf_counter()
    executable = step.get_executable(state, model.batch)
    on_hosts = cluster.is_on_hosts(executable.physical_mesh)
    if on_hosts:
        # Alpa has told them to compile it, and does not wait.
        executable.physical_mesh.sync_workers()
    planning_s = time.perf_counter() - started
    if case.num_micro_batches:
        batch = jax.tree.map(np.asarray, model.batch)
    else:
        state, batch = step.preshard_dynamic_args(state, model.batch)
    wait = cluster.wait if on_hosts else jax.block_until_ready
    return Planned(
        Program(step, state, batch, executable.get_hlo_text, partitioner_of(executable), wait),
        planning_s,
        memory_bytes(executable),
        traffic_of_step(executable),
        step_text(executable),
    )


def _by_autoshard(case: Case, option: CFPOption) -> Planned:
    """The step by CFP on a mesh that Alpa does not have: through `autoshard`."""
    model = build(case.model, case.size)
    step = training_step(model, jax.value_and_grad)
    started = time.perf_counter()
    plan = autoshard(step, _jax_mesh(case), model.state, model.batch, donate_argnums=0, option=option)
    planned = plan.jit(step).compile(model.state, model.batch)
    planning_s = time.perf_counter() - started
    (state, batch), _ = planned.input_shardings
    # device_put may hand on the model's own buffers, which donation would take.
    arguments = jax.device_put(jax.tree.map(jnp.copy, model.state), state), jax.device_put(model.batch, batch)
    sizes, text = planned.memory_bytes(), planned.as_text()
    needed = sizes["arguments"] + sizes["outputs"] + sizes["temporaries"] - sizes["aliased"]
    program = Program(planned, *arguments, lambda: text, "shardy")
    return Planned(program, planning_s, needed, traffic_of_text(text), None, plan)


def _jax_mesh(case: Case) -> Mesh:
    """The mesh of a case over this process' devices, the first ones."""
    shape = mesh_shape(case.mesh)
    return Mesh(np.array(jax.local_devices()[: case.num_devices]).reshape(shape), mesh_axes(shape))


@contextlib.contextmanager
def _with_rules(mesh: Mesh) -> Iterator[None]:
    """For the time of the context, dims with logical names are split as MaxText's rules say."""
    with jax.set_mesh(mesh), nn.logical_axis_rules(LOGICAL_AXIS_RULES):
        yield


def _by_jit(case: Case, method: str) -> Planned:
    """The step through `jax.jit`: with nothing but the batch split, or with what MaxText's rules split."""
    model = build(case.model, case.size)
    mesh = _jax_mesh(case)
    whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    placed: Any = whole
    context: Any = contextlib.nullcontext()
    if method == MAXTEXT:
        specs, split = state_specs(model, MAXTEXT), NamedSharding(mesh, batch_spec(MAXTEXT))
        placed = jax.tree.map(lambda _, spec: NamedSharding(mesh, spec), model.state, specs)
        context = _with_rules(mesh)
    count = case.num_micro_batches
    whole_step = training_step(model, jax.value_and_grad)

    def step_by_parts(state: Any, parts: list[Any]) -> tuple[Any, Any]:
        new, metrics, _ = step_of_parts(model)(state, parts)
        return new, metrics["loss"]

    step = step_by_parts if count else whole_step
    batch = jax.tree.map(np.asarray, model.batch) if count else jax.device_put(model.batch, split)
    parts = jax.device_put(_parts(batch, count), split) if count else batch
    jitted = jax.jit(step, in_shardings=(placed, split), out_shardings=(placed, whole), donate_argnums=(0,))
    # device_put may hand on the model's own buffers, which donation would take.
    state = jax.device_put(jax.tree.map(jnp.copy, model.state), placed)
    started = time.perf_counter()
    with context:
        compiled = jitted.lower(state, parts).compile()
    planning_s = time.perf_counter() - started

    def run(state: Any, batch: Any) -> Any:
        return compiled(state, jax.device_put(_parts(batch, count), split) if count else batch)

    sizes, text = compiled.memory_analysis(), compiled.as_text() or ""
    needed = 0
    if sizes is not None:
        needed = sizes.argument_size_in_bytes + sizes.output_size_in_bytes
        needed += sizes.temp_size_in_bytes - sizes.alias_size_in_bytes
    return Planned(Program(run, state, batch, lambda: text, "xla"), planning_s, needed, traffic_of_text(text), None)


def _parts(batch: Any, count: int) -> list[Any]:
    """The micro-batches of a batch on the host."""
    return [jax.tree.map(lambda array, at=at: np.split(array, count)[at], batch) for at in range(count)]
