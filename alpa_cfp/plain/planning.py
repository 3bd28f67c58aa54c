"""`autoshard`: the planner for a function and a mesh of plain JAX.

Takes a function, a `jax.sharding.Mesh` and arguments (their shapes are enough); gives a `Plan` with the shardings of
arguments and results by pytree path. Invariant: `planned_for` annotates a program just as `autoshard` did, so that
what `Plan.jit` runs is what was planned and measured.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from jax.sharding import AbstractMesh, Mesh

from alpa_cfp.explaining.accounting import signed
from alpa_cfp.option import CFPOption
from alpa_cfp.plain.meshes import axis_types_of, dims_of, of_whole_axes, platform_of, request_for
from alpa_cfp.plain.signature import Placed, Signature
from alpa_cfp.plain.tracing import Leaf, Program, trace
from alpa_cfp.plan import Plan
from alpa_cfp.planner import plan_module
from alpa_on_jax.xla_extension import annotations, mlir
from alpa_on_jax.xla_extension.hlo_module import HloModule
from alpa_on_jax.xla_extension.sharding import ArraySharding


def autoshard(
    fn: Callable[..., Any],
    mesh: Mesh | AbstractMesh,
    /,
    *args: Any,
    donate_argnums: int | Sequence[int] = (),
    option: CFPOption | None = None,
    **kwargs: Any,
) -> Plan:
    """Plan how `fn(*args, **kwargs)` is split over `mesh`; `Plan.jit` runs it so.

    `fn` is a whole training step or any other function that `jax.jit` takes. It is traced once. Loops of known length
    are unrolled where there is something to plan in them; inside those of unknown length nothing is planned.

    Args:
        fn: The function. It says nothing of where arrays lie (`with_sharding_constraint`, `shard_map`).
        mesh: One or two axes, any names, any of this process' devices in any order; an `AbstractMesh` with
            `CFPOption(costs="estimate")`.
        args: Pytrees of arrays, numbers or `jax.ShapeDtypeStruct`s.
        donate_argnums: Which of `args` may be used up, as `jax.jit` takes it.
        option: How to plan; None for `CFPOption()`, which measures on the mesh.
        kwargs: As `args`.

    Raises:
        AutoshardError: the mesh, an argument or the function cannot be planned.
        NoDevicesError: costs are to be measured, and the mesh has no devices here.
        NothingFitsError: no plan fits into the memory budget.
        PlanError: the option has a plan, and it is for something else.
    """
    option = CFPOption() if option is None else option
    request = request_for(mesh)
    program = trace(fn, args, kwargs, donate_argnums, platform_of(mesh))
    plan = plan_module(program.module, request, option)
    say_by_whole_axes(program)
    signature = signature_of(program, mesh)
    account = plan.account
    if account is not None:
        account = signed(replace(account, caveats=(*program.caveats, *account.caveats)), signature)
    plan = replace(plan, signature=signature, account=account)
    option.plans.append(plan)
    return plan


def planned_for(
    fn: Callable[..., Any], mesh: Mesh, plan: Plan, args: Sequence[Any], kwargs: dict[str, Any], donated: Sequence[bool]
) -> Program:
    """The program of `fn`, annotated with `plan` for `mesh`.

    Args:
        donated: For each leaf of `(args, kwargs)` whether it may be used up.

    Raises:
        AutoshardError: an argument or the function cannot be planned.
        PlanError: the plan is for another function or another mesh.
    """
    program = trace(fn, args, kwargs, (), platform_of(mesh)).with_donated(donated)
    plan_module(program.module, request_for(mesh), CFPOption(costs="estimate", plan=plan))
    say_by_whole_axes(program)
    return program


def signature_of(program: Program, mesh: Mesh | AbstractMesh) -> Signature:
    """The signature of an annotated program."""
    inputs, outputs = _boundary(program.module)
    devices = tuple(device.id for device in mesh.devices.flat) if isinstance(mesh, Mesh) else ()

    def placed(leaf: Leaf, sharding: ArraySharding) -> Placed:
        dims = dims_of(sharding, mesh.axis_names)[: len(leaf.shape)]
        return Placed(leaf.path, leaf.shape, str(leaf.dtype), dims, leaf.donated)

    return Signature(
        axis_names=tuple(mesh.axis_names),
        axis_types=axis_types_of(mesh),
        devices=devices,
        inputs=tuple(map(placed, program.inputs, inputs)),
        outputs=tuple(map(placed, program.outputs, outputs)),
    )


def say_by_whole_axes(program: Program) -> None:
    """Bring arguments and results that no `PartitionSpec` of the user's can describe to where one can.

    These are the bits of random keys, where propagation has split them, and what is split by a part of a mesh axis:
    Shardy leaves no such parts at a function's border, but a planner may.
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
