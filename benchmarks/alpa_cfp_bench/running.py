"""Plans each method, checks one step of each against the serial run, and times all of them side by side.

Takes a case, methods and an effort; gives a `Comparison`. Invariants: no step is timed that gave something else than
the serial run; all times are from one process, interleaved in random order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import alpa
import jax
from alpa.shard_parallel.auto_sharding import LogicalDeviceMesh

from alpa_cfp import CFPOption, Plan
from alpa_cfp.database import ProfileDatabase
from alpa_cfp_bench.case import CFP, ILP, ILP_AGAIN, Case, Effort
from alpa_cfp_bench.checking import Difference, difference, run_serially, tolerance
from alpa_cfp_bench.ilp_settings import Best, best_setting, settings
from alpa_cfp_bench.methods import Planned, Setting, plan_method
from alpa_cfp_bench.programs import Traffic
from alpa_cfp_bench.progress import Progress
from alpa_cfp_bench.timing import WARMUP, Ratio, Samples, interleave, pool, ratio
from alpa_cfp_bench.workloads.model import Model
from alpa_cfp_bench.workloads.models import build


@dataclass(frozen=True, slots=True)
class Measured:
    """A method's step, held against the serial one and timed.

    Attributes:
        method: Its name.
        difference: How far the first step is from the serial one.
        is_right: Whether that is within the tolerance.
        samples: Times of its steps, of all copies; None where it is wrong.
        to_ilp: Its time by that of Alpa's ILP; None for the ILP itself, or where one of them is not there.
    """

    method: str
    difference: Difference
    is_right: bool
    samples: Samples | None
    to_ilp: Ratio | None


@dataclass(frozen=True, slots=True)
class Outcome(Measured):
    """The results of one method.

    Attributes:
        planning_s: The time to plan and compile it the first time.
        memory_bytes: The memory of one device.
        traffic: The communication of a step.
        same_as: The first method with an identical program; "" if there is none.
        predicted_s: The step time that CFP predicted; None for other methods.
        plan: CFP's plan; None for other methods.
        settings: For a method with several settings, the step time of each in seconds when one was selected, the
            selected one first; empty for other methods.
    """

    planning_s: float
    memory_bytes: int
    traffic: tuple[Traffic, ...]
    same_as: str
    predicted_s: float | None
    plan: Plan | None
    settings: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Compared:
    """A comparison of methods on one case.

    Attributes:
        case: The case.
        effort: The number of runs.
        parameters: The number of parameters of the model.
        loss: The loss of the serial run's first step.
        tolerance: The largest difference from the serial step that is allowed.
        outcomes: One per method, in the order in which the methods were named.
    """

    case: Case
    effort: Effort
    parameters: int
    loss: float
    tolerance: float
    outcomes: tuple[Measured, ...]

    @property
    def is_right(self) -> bool:
        """Whether every method gave what the serial run gave."""
        return all(outcome.is_right for outcome in self.outcomes)


@dataclass(frozen=True, slots=True)
class Comparison(Compared):
    """A comparison of methods that shard one step.

    Attributes:
        outcomes: One per method, in the order in which the methods were named.
        profiled: The number of programs that CFP measured for its plan; None without CFP.
        known: The number of profiles that the database had before.
    """

    outcomes: tuple[Outcome, ...]
    profiled: int | None
    known: int

    def of(self, method: str) -> Outcome | None:
        """The outcome of a method, if it is there."""
        return next((outcome for outcome in self.outcomes if outcome.method == method), None)


def steps_of(methods: Sequence[str], effort: Effort) -> int:
    """How many steps a `Progress` has for `compare`."""
    return 1 + len(methods) * effort.copies + effort.rounds + WARMUP


def compare(
    case: Case,
    methods: Sequence[str],
    effort: Effort,
    option: CFPOption,
    progress: Progress,
    devices: LogicalDeviceMesh | None = None,
) -> Comparison:
    """Compare methods.

    Args:
        case: What is to run.
        methods: Keys of `ALL_METHODS`, each once.
        effort: How often.
        option: How CFP plans.
        progress: Is told what happens, in `steps_of` steps.
        devices: The case's logical mesh; None for one of this process' devices. The serial run is always on one of the
            latter.
    """
    progress.say("the serial run")
    model = build(case.model, case.size)
    expected = run_serially(model, case.num_micro_batches)
    progress.advance()
    before = num_profiles(option) if CFP in methods else 0
    copies: dict[str, list[Planned]] = {}
    profiled: int | None = None
    differences: dict[str, Difference] = {}
    best = None
    if not {ILP, ILP_AGAIN}.isdisjoint(methods):
        progress.say(f"planning {ILP} for all shapes of the mesh")
        best = _best_of_ilp(case, effort, option, devices)
    for method in methods:
        copies[method] = []
        setting = None if best is None or method not in (ILP, ILP_AGAIN) else best.setting
        for copy in range(effort.copies):
            progress.say(f"planning {method}" if copy == 0 else f"planning {method} once more")
            copies[method].append(plan_method(case, method, option, devices, setting))
            program = copies[method][-1].program
            program()
            found = difference(program.loss(), program.state, expected)
            differences[method] = max(differences.get(method, found), found, key=lambda each: each.relative)
            progress.advance()
        if method == CFP:
            profiled = num_profiles(option) - before
    limit = tolerance(model, None if devices is None else alpa.global_config.backend)
    right = [method for method in methods if differences[method].relative <= limit]
    samples = _timed({method: copies[method] for method in right}, effort, progress)
    outcomes = tuple(
        _outcome(method, copies, samples, differences[method], limit, effort.seed, best if method == ILP else None)
        for method in methods
    )
    return Comparison(case, effort, num_parameters(model), expected.loss, limit, outcomes, profiled, before)


def num_parameters(model: Model) -> int:
    """How many numbers a model learns."""
    return sum(leaf.size for leaf in jax.tree.leaves(model.state.params))


def _timed(copies: dict[str, list[Planned]], effort: Effort, progress: Progress) -> dict[str, Samples]:
    functions = {
        f"{method} {number}": planned.program for method, each in copies.items() for number, planned in enumerate(each)
    }
    if not functions:
        return {}
    progress.say(f"timing {len(copies)} methods, {effort.rounds} rounds")
    found = interleave(functions, effort.rounds, seed=effort.seed, after_round=progress.advance)
    return {method: pool([found[f"{method} {number}"] for number in range(len(copies[method]))]) for method in copies}


def _outcome(
    method: str,
    copies: dict[str, list[Planned]],
    samples: dict[str, Samples],
    found: Difference,
    limit: float,
    seed: int,
    best: Best | None,
) -> Outcome:
    first = copies[method][0]
    alike = (other for other, each in copies.items() if first.text is not None and each[0].text == first.text)
    same = next(alike, method)
    own, ilp = samples.get(method), samples.get(ILP)
    return Outcome(
        method=method,
        planning_s=first.planning_s if best is None else best.planning_s,
        memory_bytes=first.memory_bytes,
        traffic=first.traffic,
        difference=found,
        is_right=found.relative <= limit,
        samples=own,
        to_ilp=ratio(own, ilp, seed=seed) if own and ilp and method != ILP else None,
        same_as="" if same == method else same,
        predicted_s=None if first.plan is None else first.plan.predicted_s,
        plan=first.plan,
        settings={} if best is None else _chosen_first(best),
    )


def _best_of_ilp(case: Case, effort: Effort, option: CFPOption, devices: LogicalDeviceMesh | None) -> Best:
    def plan(setting: Setting) -> Planned:
        return plan_method(case, ILP, option, devices, setting)

    return best_setting(plan, settings(case.num_devices), Setting(case.mesh), effort)


def _chosen_first(best: Best) -> dict[str, float]:
    ordered = sorted(best.median_s, key=lambda setting: setting != best.setting)
    return {str(setting): best.median_s[setting] for setting in ordered}


def num_profiles(option: CFPOption) -> int:
    """How many programs the option's database has profiles of."""
    with ProfileDatabase.open(option.database) as database:
        return len(database.keys())
