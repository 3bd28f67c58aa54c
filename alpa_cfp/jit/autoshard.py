"""`autoshard`: the planner for a function and a mesh of plain JAX.

Takes a function, a `jax.sharding.Mesh` and arguments (their shapes are enough); gives a `Plan` with the shardings of
arguments and results by pytree path. Invariant: `planned_for` annotates a program exactly as `autoshard` did, so that
`Plan.jit` runs the program that was planned and measured.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, overload

from jax.sharding import Mesh

from alpa_cfp.errors import AutoshardError
from alpa_cfp.evidence.plan_evidence import signed
from alpa_cfp.jit.constraints import asked_by_plan, asked_by_user, require_obeyed
from alpa_cfp.jit.loops_as_written import faster_form
from alpa_cfp.jit.meshes import AnyMesh, axis_types_of, dims_of, of_shape, of_whole_axes, platform_of, request_for
from alpa_cfp.jit.micro_batch_forms import fastest_parts, possible_parts, trace_in_parts
from alpa_cfp.jit.processes import planning_together
from alpa_cfp.jit.recomputation import Made, fastest_form, recomputing
from alpa_cfp.jit.tracing import Leaf, TracedFunction
from alpa_cfp.lazily import call
from alpa_cfp.plan.plan import Plan
from alpa_cfp.plan.plan_cache import PlannedModule
from alpa_cfp.plan.signature import Asked, MicroBatches, Placed, Signature
from alpa_cfp.planner.new_plan import budget_of
from alpa_cfp.planner.options import HasPlanOptions, PlanOptions
from alpa_cfp.planner.planner import plan as plan_module
from alpa_cfp.planner.request import PlanRequest
from alpa_cfp.profiling import TimeBudget
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.shardings import annotations
from alpa_cfp.spmd.shardings.sharding import ArraySharding

if TYPE_CHECKING:
    from alpa_cfp.jit.at_first_call import Decorator


@dataclass(frozen=True, slots=True)
class Boundary:
    """What is said of a function's arguments and results: `batch_argnums` as for `in_micro_batches`, all else as for
    `jax.jit`.
    """

    donate_argnums: int | Sequence[int] = ()
    in_shardings: Any = None
    out_shardings: Any = None
    batch_argnums: int | Sequence[int] = ()


@overload
def autoshard(
    fn: Callable[..., Any],
    mesh: AnyMesh,
    /,
    *args: Any,
    donate_argnums: int | Sequence[int] = (),
    in_shardings: Any = None,
    out_shardings: Any = None,
    batch_argnums: int | Sequence[int] = (),
    option: PlanOptions | HasPlanOptions | None = None,
    **kwargs: Any,
) -> Plan: ...


@overload
def autoshard(
    mesh: AnyMesh,
    /,
    *,
    donate_argnums: int | Sequence[int] = (),
    in_shardings: Any = None,
    out_shardings: Any = None,
    batch_argnums: int | Sequence[int] = (),
    option: PlanOptions | HasPlanOptions | None = None,
    **options: Any,
) -> "Decorator": ...


def autoshard(
    fn: Callable[..., Any] | AnyMesh,
    mesh: AnyMesh | None = None,
    /,
    *args: Any,
    donate_argnums: int | Sequence[int] = (),
    in_shardings: Any = None,
    out_shardings: Any = None,
    batch_argnums: int | Sequence[int] = (),
    option: PlanOptions | HasPlanOptions | None = None,
    **kwargs: Any,
) -> "Plan | Decorator":
    """Plans how `fn(*args, **kwargs)` is partitioned over `mesh`; `Plan.jit` runs it so.

    `fn` is a whole training step or any other function that `jax.jit` takes. It is traced once. Loops of known length
    are unrolled where there is something to plan in them. Those over large time steps, whose state meets the same
    weights in each, are split as a whole, as those of unknown length are, and so are all loops of a program that would
    become very many small operations. If to split the program gains little, and whole plans are timed, the function is
    traced and planned again with its loops as they are written, and the faster form runs. With a memory budget, the
    function is planned again with parts of its forward pass computed again in the backward pass, where the fastest plan
    without does not fit, and in micro-batches, if `batch_argnums` says which arguments have samples.

    `@autoshard(mesh, ...)` is a decorator: the function is planned at its first call, and again for arguments of other
    shapes. Keyword arguments are then fields of `PlanOptions`: `@autoshard(mesh, donate_argnums=0, refine=5)`. The
    result has `plan`, `plan_for(*args)` and what `PlannedFunction` has.

    Args:
        fn: The function. Shardings that it sets (`with_sharding_constraint`, `jax.sharding.reshard`, those of inner
            `jax.jit`s) are kept; a `jax.shard_map` runs as it is written, and what is around it is planned.
        mesh: Up to eight axes, any names, any devices in any order, of several processes, too: then all of these call
            `autoshard` and get the same plan; an `AbstractMesh` with `PlanOptions(costs="estimate")`; a `TargetMesh`,
            `target("h100:1x8").mesh()`, with `costs="compile"` too.
        args: Pytrees of arrays, numbers or `jax.ShapeDtypeStruct`s.
        donate_argnums: The positions in `args` of donated arguments, as for `jax.jit`.
        in_shardings: What the plan must keep to, as for `jax.jit`: a pytree of `NamedSharding`s or `PartitionSpec`s for
            `args`, or a prefix of one. None, and a dim that is `P.UNCONSTRAINED`, are left to the plan. An argument on
            `mesh` with a `NamedSharding` is kept there, too; a shape alone says nothing.
        out_shardings: The same for the result.
        batch_argnums: The positions in `args` of arguments with samples along the first dims of their arrays. If they
            are given, a training step that does not fit into the memory budget may run in micro-batches, as
            `in_micro_batches` does it.
        option: The options of planning; None for `PlanOptions()`, which measures on the mesh. Also a `CFPOption`.
        kwargs: As `args`.

    Raises:
        AutoshardError: `mesh` is no mesh of one to eight named axes, an argument is no array, or what is asked of
            shardings cannot be.
        ForeignMeshError: `fn` asks for shardings over another mesh.
        NestedIslandError: `fn` has a `shard_map` inside a `shard_map`.
        HostCallbackError: `fn` uses the result of a callback into Python.
        TypeError, ValueError: `jax.jit` refuses `fn` or `donate_argnums`; also any exception of `fn` itself.
        NoDevicesError: `costs="measure"`, and the mesh has no devices, or none of this process.
        ProcessesError: the mesh has devices of several processes, and one of them did not call `autoshard`, plans
            another program, is lost or has failed.
        ProfilingError: `costs="measure"`, and the process for measuring was lost and cannot be started again.
        ReplayError: `costs="replay"`, and the database lacks profiles, or has those of several kinds of devices.
        ProfileDatabaseError: the profile database cannot be read while it is in use.
        MemoryBudgetError: no plan fits into the memory budget.
        MicroBatchError: with a memory budget, `batch_argnums` names no arguments with samples.
        NoPlanError: each strategy of some block failed when it was profiled.
        NoRunnablePlanError: none of the best plans could be compiled and timed end to end.
        PlanError: `option.plan` is for another program or mesh, or is no plan.
        OSError: `option.plan` is a file that cannot be read.
    """
    boundary = Boundary(donate_argnums, in_shardings, out_shardings, batch_argnums)
    if isinstance(fn, AnyMesh):
        if mesh is not None or args:
            raise AutoshardError.mesh_first()
        return call("alpa_cfp.jit.at_first_call", "Decorator", fn, boundary, plan_options(option, **kwargs))
    return plan_function(fn, mesh, args, kwargs, boundary, plan_options(option))


def plan_function(
    fn: Callable[..., Any],
    mesh: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    boundary: Boundary,
    options: PlanOptions,
) -> Plan:
    """Returns the plan of `fn(*args, **kwargs)` on `mesh`, with its signature; see `autoshard`."""
    request = request_for(mesh)
    with planning_together(mesh, request, options) as processes:
        asked = asked_by_user(mesh, args, kwargs, boundary.in_shardings, boundary.out_shardings)

        @cache
        def traced(parts: MicroBatches | None, *, keeps_loops: bool) -> TracedFunction:
            donated, platform = boundary.donate_argnums, platform_of(mesh)
            return trace_in_parts(parts, fn, args, kwargs, donated, platform, asked, keeps_loops=keeps_loops)

        program = traced(None, keeps_loops=False)
        budget = TimeBudget.of(options.planning_budget_s)
        is_limited = budget_of(request, options) is not None
        possible = tuple(possible_parts(args, boundary.batch_argnums)) if is_limited else ()

        def make(request: PlanRequest) -> Plan:
            given = options.read_plan()

            def planned(form: TracedFunction, options: PlanOptions = options) -> PlannedModule:
                now = replace(options, plan=given, planning_budget_s=budget.left_s)
                return plan_module(form.module, request, now)

            def of_parts(parts: MicroBatches) -> Made:
                form = traced(parts, keeps_loops=False)
                return form, planned(form)

            if given is None:
                first = partial(faster_form, program, partial(traced, None, keeps_loops=True), planned, budget)
                device_bytes = request.memory_budget_bytes
                whole = partial(fastest_form, program, first, planned, options, budget, mesh.size, device_bytes)
                return _signed(*fastest_parts(whole, of_parts, possible, budget), mesh)
            form = program if given.signature is None else _form_of(given.signature, traced)
            return _signed(form, planned(form), mesh)

        return processes.planned(program, make)


def _form_of(signature: Signature, traced: Callable[..., TracedFunction]) -> TracedFunction:
    """The form of a function that a plan is for."""
    program = traced(signature.micro_batches, keeps_loops=signature.keeps_loops)
    return recomputing(program, signature.recomputed)


def _signed(program: TracedFunction, made: PlannedModule, mesh: AnyMesh) -> Plan:
    """The plan of a program with its signature."""
    program, plan = replace(program, module=made.module), made.plan
    use_whole_axes(program)
    signature = signature_of(program, of_shape(mesh, plan.mesh_shape))
    account = plan.account
    if account is not None:
        account = signed(replace(account, caveats=(*program.caveats, *account.caveats)), signature)
    return replace(plan, signature=signature, account=account)


def plan_options(option: PlanOptions | HasPlanOptions | None, **changes: Any) -> PlanOptions:
    """Returns the options in `option`, with some fields changed.

    Raises:
        TypeError: there is no such field.
        OptionError: a field has a wrong value.
    """
    options = PlanOptions() if option is None else option if isinstance(option, PlanOptions) else option.plan_options
    return replace(options, **changes)


def planned_for(
    fn: Callable[..., Any], mesh: Mesh, plan: Plan, args: Sequence[Any], kwargs: dict[str, Any], donated: Sequence[bool]
) -> TracedFunction:
    """Returns the program of `fn`, annotated with `plan` for `mesh`.

    Args:
        donated: For each leaf of `(args, kwargs)` whether it is donated.

    Raises:
        AutoshardError: an argument or the function cannot be planned.
        PlanError: the plan is for another function or another mesh.
    """
    signature = plan.signature
    assert signature is not None
    asked = asked_by_plan(mesh, signature)

    def traced(parts: MicroBatches | None, *, keeps_loops: bool) -> TracedFunction:
        platform = platform_of(mesh)
        return trace_in_parts(parts, fn, args, kwargs, (), platform, asked, donated, keeps_loops=keeps_loops)

    program = _form_of(signature, traced)
    made = plan_module(program.module, request_for(mesh), PlanOptions(costs="estimate", plan=plan))
    program = replace(program, module=made.module)
    use_whole_axes(program)
    return program


def signature_of(program: TracedFunction, mesh: AnyMesh) -> Signature:
    """Returns the signature of an annotated program."""
    inputs, outputs = _boundary(program.module)
    devices = tuple(device.id for device in mesh.devices.flat) if isinstance(mesh, Mesh) else ()

    def placed(leaf: Leaf, sharding: ArraySharding, asked: Asked) -> Placed:
        dims = dims_of(sharding, mesh.axis_names)[: len(leaf.shape)]
        require_obeyed(leaf.path, asked, dims, mesh)
        return Placed(leaf.path, leaf.shape, str(leaf.dtype), dims, leaf.donated, asked)

    return Signature(
        axis_names=tuple(mesh.axis_names),
        axis_types=axis_types_of(mesh),
        devices=devices,
        inputs=tuple(map(placed, program.inputs, inputs, program.asked)),
        outputs=tuple(map(placed, program.outputs, outputs, program.asked_of_results)),
        keeps_loops=program.keeps_loops,
        recomputed=program.recomputed,
        micro_batches=program.micro_batches,
    )


def use_whole_axes(program: TracedFunction) -> None:
    """Changes shardings of arguments and results that no `PartitionSpec` of the user's mesh can describe.

    These split the bits of random keys, or a dim by a part of a mesh axis. Shardy leaves no such parts at a function's
    boundary, but the planner may.
    """
    module = program.module
    before = _boundary(module)
    leaves = program.inputs, program.outputs
    inputs, outputs = (
        tuple(of_whole_axes(sharding, len(leaf.shape)) for sharding, leaf in zip(shardings, of, strict=True))
        for shardings, of in zip(before, leaves, strict=True)
    )
    if (inputs, outputs) == before:
        return

    def write(parsed: Any) -> None:
        annotations.set_boundary(mlir.main_function(parsed), inputs, outputs)

    module.bytecode, _ = mlir.edit(module.bytecode, write)
    module.input_shardings, module.output_shardings = inputs, outputs


def _boundary(module: HloModule) -> tuple[tuple[ArraySharding, ...], tuple[ArraySharding, ...]]:
    return tuple(module.input_shardings or ()), tuple(module.output_shardings or ())
