"""One public program on one mesh, in this process: planned, compared with `jax.jit`, and timed.

Takes a step; gives an `Outcome`, told after each phase, so that a process that ends early leaves what it found.
Invariants: the reference is plain `jax.jit` on one device, and nothing of the plan reaches it; data parallelism is
plain `jax.jit` of arguments of which the batch is split over all axes of the mesh and the rest is on each device.
"""

import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from public_steps import absent, comparing, timing
from public_steps.programs import PROGRAMS, make_step
from public_steps.step import Arguments, Step

# By chance a sum of rounding may come out the same in one of them.
_CONTROLS = 5
METHODS = ("autoshard", "alpa-cfp", "alpa-ilp")


@dataclass(frozen=True)
class Outcome:
    """What became of a program.

    Attributes:
        program, mesh, method: Of `PROGRAMS`, "2x4", of `METHODS`.
        status: "equal", "differs", "ran" (not compared), "failed", "crashed" or "timed_out".
        phase: What was done last: "make", "jit", "plan", "run", "compare" or "time".
        reason: The class and the text of an error, or the arrays that differ.
        where: The innermost line of the project that the error passed.
        commit: That of the checkout.
        costs: Where the plan's costs come from.
        arrays: The number of the step's arguments.
        jit_s: Seconds that `jax.jit` needs to trace, lower and compile, on one device.
        data_parallel_jit_s: The same for data parallelism.
        planning_s: Seconds that planning needs.
        planned_jit_s: Seconds that the planned function needs to compile.
        loss_deviation, state_deviation: Relative to the largest element of the array; the largest of all after two
            steps.
        deviating: The array of the state's.
        control_deviation: The largest one there of runs that differ by rounding alone (`comparing`).
        step_ratio: The planned step's time by that of data parallelism.
        step_s, data_parallel_s: The medians.
        pairs: The number of pairs of which they are.
    """

    program: str
    mesh: str
    method: str = "autoshard"
    status: str = "crashed"
    phase: str = "make"
    reason: str = ""
    where: str = ""
    commit: str = ""
    costs: str = ""
    arrays: int = 0
    jit_s: float | None = None
    data_parallel_jit_s: float | None = None
    planning_s: float | None = None
    planned_jit_s: float | None = None
    loss_deviation: float | None = None
    state_deviation: float | None = None
    deviating: str = ""
    control_deviation: float | None = None
    step_ratio: float | None = None
    step_s: float | None = None
    data_parallel_s: float | None = None
    pairs: int = 0


@dataclass(frozen=True)
class Run:
    """What is run, and how.

    Attributes:
        checkout: The checkout of the program's repository.
        costs, database: As in `PlanOptions`.
        timing_s: The seconds for which steps are timed in pairs; 0 for none.
    """

    program: str
    mesh: str
    method: str
    checkout: Path
    costs: str
    database: Path | None
    timing_s: float


def mesh_of(text: str, names: tuple[str, ...]) -> Mesh:
    """The mesh "2x4" of this process' devices, with the first of `names` as its axes."""
    shape = tuple(map(int, text.split("x")))
    devices = jax.devices()
    if len(devices) != np.prod(shape):
        raise ValueError(f"the mesh {text} is of {np.prod(shape)} devices, and here are {len(devices)}")
    return Mesh(np.array(devices).reshape(shape), names[: len(shape)])


def run(what: Run, commit: str, tell: Callable[[Outcome], None]) -> None:
    """Run a program, and tell its outcome after each phase."""
    outcome = Outcome(what.program, what.mesh, what.method, commit=commit, costs=what.costs)

    def now(**changes: Any) -> None:
        nonlocal outcome
        outcome = replace(outcome, **changes)
        tell(outcome)

    now()
    try:
        _run(what, now)
    except Exception as error:  # noqa: BLE001 - whatever a program does is its outcome
        lines = str(error).strip().splitlines() or [""]
        now(status="failed", reason=f"{type(error).__name__}: {lines[0][:400]}", where=_where(error))
        traceback.print_exc()


def _run(what: Run, now: Callable[..., None]) -> None:
    program = PROGRAMS[what.program]
    absent.replace(program.absent)
    mesh = mesh_of(what.mesh, program.axes)
    step = make_step(what.program, what.checkout, mesh)
    now(phase="jit", arrays=len(jax.tree.leaves(step.arguments)))
    alone = step
    if program.names_mesh:
        one = Mesh(mesh.devices.flatten()[:1].reshape((1,) * mesh.devices.ndim), mesh.axis_names)
        alone = make_step(what.program, what.checkout, one)
    reference, jit_s = _compiled(alone, alone.arguments, None)
    after_two = two_steps(alone, reference)
    parallel, data_parallel_jit_s = _compiled(step, data_parallel(step, mesh), NamedSharding(mesh, PartitionSpec()))
    now(phase="plan", jit_s=jit_s, data_parallel_jit_s=data_parallel_jit_s)
    start = time.perf_counter()
    planned, finish, place = _planned(what, step, mesh)
    now(phase="run", planning_s=time.perf_counter() - start)
    start = time.perf_counter()
    finish()
    now(planned_jit_s=time.perf_counter() - start)
    own = two_steps(step, planned)
    now(phase="compare")
    controls = [two_steps(replace(step, arguments=data_parallel(step, mesh)), parallel)]
    for seed in range(_CONTROLS):
        changed = replace(alone, arguments=comparing.in_the_last_bit(alone.arguments, seed))
        controls.append(two_steps(changed, reference))
    loss = comparing.compared(step.loss(own), step.loss(after_two), [step.loss(control) for control in controls])
    state = comparing.compared(own, after_two, controls)
    if program.draws and what.method != "autoshard":
        now(status="ran", phase="done")
        return
    beyond = [text for text in (loss.beyond and "the loss", state.beyond) if text]
    now(
        status="differs" if beyond or loss.beyond else "equal",
        reason=", ".join(beyond),
        loss_deviation=loss.largest,
        state_deviation=state.largest,
        deviating=state.path,
        control_deviation=state.control,
    )
    if what.timing_s:
        now(phase="time")
        # In a training loop each has its arguments where it left them.
        fresh, own_fresh = data_parallel(step, mesh), place(step.arguments)
        pairs = timing.in_pairs(
            lambda: _ready(planned, jax.tree.map(_copy, own_fresh)),
            lambda: _ready(parallel, jax.tree.map(_copy, fresh)),
            what.timing_s,
        )
        now(step_ratio=pairs.ratio, step_s=pairs.own_s, data_parallel_s=pairs.other_s, pairs=pairs.number)
    now(phase="done")


def _compiled(step: Step, arguments: Arguments, results: Any) -> tuple[Callable[..., Any], float]:
    """Plain `jax.jit` of the step for these arguments, and the seconds that it needs.

    Args:
        results: The sharding of results; None for any.
    """
    jitted = jax.jit(step.function, out_shardings=results)
    start = time.perf_counter()
    compiled = jitted.lower(*arguments).compile()
    return compiled, time.perf_counter() - start


def _planned(
    what: Run, step: Step, mesh: Mesh
) -> tuple[Callable[..., Any], Callable[[], Any], Callable[[Arguments], Arguments]]:
    """The planned step, what compiles it, and what puts its arguments where the plan has them, if that is known."""
    if what.method != "autoshard":
        from public_steps.through_alpa import parallelized

        return *parallelized(what.method, what.mesh, what.costs, what.database, step), lambda arguments: arguments
    from alpa_cfp import PlanOptions, autoshard

    option = PlanOptions(costs=what.costs, database=what.database, progress=False)  # type: ignore[arg-type]
    plan = autoshard(step.function, mesh, *step.arguments, donate_argnums=step.donated, option=option)
    planned = plan.jit(step.function, mesh)
    return (
        planned,
        lambda: planned.compile(*step.arguments),
        lambda arguments: jax.device_put(arguments, plan.shardings(step.function, *arguments, mesh=mesh).args),
    )


def two_steps(step: Step, function: Callable[..., Any]) -> Any:
    """The result of the second step, on the host; the step's own arguments are copied, since they may be donated."""
    arguments = jax.tree.map(_copy, step.arguments)
    result = function(*arguments)
    return jax.device_get(_as_bits(function(*step.following(arguments, result))))


def data_parallel(step: Step, mesh: Mesh) -> Arguments:
    """The arguments on the mesh: the batch split over all axes where they divide it, the rest on each device."""

    def placed(leaf: Any, is_batch: bool) -> Any:
        split = is_batch and np.ndim(leaf) > 0 and leaf.shape[0] % mesh.size == 0
        spec = PartitionSpec(mesh.axis_names) if split else PartitionSpec()
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return tuple(
        jax.tree.map(lambda leaf, own=position in step.batch: placed(leaf, own), argument)
        for position, argument in enumerate(step.arguments)
    )


def _ready(function: Callable[..., Any], arguments: Arguments) -> Callable[[], Any]:
    jax.block_until_ready(arguments)
    return lambda: function(*arguments)


def _copy(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, jax.Array) else leaf


def _as_bits(tree: Any) -> Any:
    return jax.tree.map(comparing.as_numbers, tree)


def _where(error: BaseException) -> str:
    where = ""
    for frame in traceback.extract_tb(error.__traceback__):
        parts = Path(frame.filename).parts
        for package in ("alpa_on_jax", "alpa_cfp", "alpa", "public_steps"):
            if package in parts:
                where = f"{'/'.join(parts[len(parts) - parts[::-1].index(package) - 1 :])}:{frame.lineno}"
                break
    return where


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The outcome as JSON."""
    return asdict(outcome)
