"""A comparison as text for a terminal, of methods or of pipelines: takes it and the machine; gives lines.

Invariant: each number is explained below the tables, in words of a user.
"""

import math
from collections.abc import Sequence

from alpa_cfp import quantities
from alpa_cfp_bench.case import ALL_METHODS, CFP, COMPOSED, ILP, ILP_AGAIN, PIPELINE_METHODS, Effort
from alpa_cfp_bench.pipelines import PipelineComparison, PipelineOutcome
from alpa_cfp_bench.running import Compared, Comparison, Measured, Outcome
from alpa_cfp_bench.stage_choice import TIMERS
from alpa_cfp_bench.text import filled, fitting, layers_text, shape_text, size_text, time_text, wrapped
from alpa_cfp_bench.timing import Ratio
from alpa_cfp_bench.workloads.sizes import mesh_shape

_STEP_COLUMNS = ("step", "spread", "ratio to ILP", "95% interval")
_STAGE_COLUMNS = ("layers", "submesh", "logical mesh", "cost", "memory")
_IN_ONE_PROCESS = "all in one process, in random order"
_IN_TURN = "one method after the other, since the cluster has not the devices of all at once"
# What takes less has nothing to do.
_SHORTEST_S = 0.05


def lines(found: Comparison | PipelineComparison, machine: dict[str, object], width: int | None = None) -> list[str]:
    """Return the whole report: the case, a row for each method, further tables, and what the numbers mean.

    Args:
        found: What came out.
        machine: As `machine.describe` gives it.
        width: Of the terminal, which no line exceeds if it can be; None for lines as long as they are.
    """
    first, *rest = _head(found, machine)
    if isinstance(found, Comparison):
        tables = [_times(found), _communication(found)]
        verdict, meaning = _verdict(found), _meaning(found, machine)
    else:
        first = f"{first}, {_how(found)}"
        tables = [_planning(found.outcomes), _pipeline_times(found.outcomes), _stages(found.outcomes)]
        verdict, meaning = _pipeline_verdict(found), _pipeline_meaning(found, machine)
    out = wrapped([first, *rest], width)
    for table in tables:
        out += ["", *fitting(filled(table), width)]
    return [*out, "", *wrapped(verdict, width), "", *wrapped(meaning, width)]


def title(found: Compared) -> str:
    """One line that names the model, its size and the mesh."""
    case = found.case
    parts = f" in {case.num_micro_batches} micro-batches" if case.num_micro_batches else ""
    return (
        f"A training step of {case.model} ({found.parameters:,} parameters, batch {case.size.batch}{parts}) "
        f"on {quantities.a_mesh(mesh_shape(case.mesh))}"
    )


def place(machine: dict[str, object]) -> str:
    """One line that names the devices, the versions and the date."""
    versions = machine["versions"]
    named = f"jax {versions['jax']}, alpa {versions['alpa']}" if isinstance(versions, dict) else ""
    virtual = " (virtual)" if _are_virtual(machine) else ""
    return f"{machine['devices']}{virtual} on {machine['cores']} cores, {machine['cpu']}; {named}; {machine['date']}"


def _are_virtual(machine: dict[str, object]) -> bool:
    return str(machine["devices"]).endswith(" cpu")


def _head(found: Compared, machine: dict[str, object]) -> list[str]:
    """The lines above the table: the case, the machine, and the check against the serial run."""
    right = sum(outcome.is_right for outcome in found.outcomes)
    within = max((each.difference.relative for each in found.outcomes if each.is_right), default=0.0)
    return [
        title(found),
        place(machine),
        f"{right} of {len(found.outcomes)} methods give the serial run's loss and state after a step (within "
        f"{within:.0e} of each array's largest entry; {found.tolerance:.0e} is allowed)",
    ]


def _wrong(found: Compared) -> list[str]:
    """A line for each method that is wrong."""
    return [
        f"{each.method} is WRONG: {each.difference.where} differs from the serial run by "
        f"{each.difference.relative:.1e} of its largest entry; it was not timed"
        for each in found.outcomes
        if not each.is_right
    ]


def _step_cells(outcome: Measured) -> list[str]:
    """The cells of a method in the columns `_STEP_COLUMNS`."""
    if outcome.samples is None:
        return ["WRONG", "", "", ""]
    by = outcome.to_ilp
    return [
        time_text(outcome.samples.median_s),
        f"± {outcome.samples.spread:.0%}",
        "1" if outcome.method == ILP else f"{by.paired:.2f}" if by else "",
        f"{by.paired_low:.2f} to {by.paired_high:.2f}" if by else "",
    ]


def _times(found: Comparison) -> list[list[str]]:
    return [["method", "planning", *_STEP_COLUMNS, "memory", "predicted"], *map(_row, found.outcomes)]


def _row(outcome: Outcome) -> list[str]:
    return [
        outcome.method,
        f"{outcome.planning_s:.1f} s",
        *_step_cells(outcome),
        size_text(outcome.memory_bytes),
        time_text(outcome.predicted_s) if outcome.is_right and outcome.predicted_s is not None else "",
    ]


def _communication(found: Comparison) -> list[list[str]]:
    kinds = sorted({each.kind for outcome in found.outcomes for each in outcome.traffic})
    if not kinds:
        return [["no method communicates"]]
    rows = [["communicated a step", *kinds, "in all"]]
    for outcome in found.outcomes:
        of = {each.kind: f"{each.count} x, {size_text(each.size_bytes)}" for each in outcome.traffic}
        total = sum(each.size_bytes for each in outcome.traffic)
        rows.append([outcome.method, *(of.get(kind, "") for kind in kinds), size_text(total)])
    return rows


def _verdict(found: Comparison) -> list[str]:
    said = _wrong(found)
    said += [f"{each.method} has the same program as {each.same_as}" for each in found.outcomes if each.same_as]
    own, ilp = found.of(CFP), found.of(ILP)
    alike = own is not None and ilp is not None and (own.same_as == ILP or ilp.same_as in (CFP, own.same_as or CFP))
    if own is not None and own.to_ilp is not None and not alike:
        said.append(_against_ilp("CFP's step", own.to_ilp))
    again = found.of(ILP_AGAIN)
    if again is not None and again.to_ilp is not None:
        said.append(f"two equal programs of Alpa's ILP differ by {abs(1 - again.to_ilp.paired):.0%} here")
    return [*said, *_settings(found)] or ["no two of the programs are known to be the same"]


def _settings(found: Comparison) -> list[str]:
    """Of which settings a method's are the fastest."""
    said = []
    for each in found.outcomes:
        if len(each.settings) < 2:
            continue
        (chosen, of_chosen), *others = each.settings.items()
        if math.isnan(of_chosen):
            said.append(f"{each.method} has one program with all settings ({', '.join(each.settings)})")
            continue
        slower = ", ".join(f"{name} {seconds / of_chosen - 1:+.0%}" for name, seconds in others)
        said.append(f"{each.method} is that for {chosen}, the fastest in a run before this one ({slower})")
    return said


def _against_ilp(step: str, by: Ratio) -> str:
    """The ratio of a step time to the ILP's, as a sentence."""
    if by.paired_low <= 1 <= by.paired_high:
        return f"{step} takes as long as the one that Alpa's ILP planned, as far as this run can tell"
    return (
        f"{step} takes {by.paired:.2f} of the time of the step that Alpa's ILP planned: "
        f"{abs(1 - by.paired):.0%} {'less' if by.paired < 1 else 'more'}"
    )


def _meaning(found: Comparison, machine: dict[str, object]) -> list[str]:
    names = [outcome.method for outcome in found.outcomes]
    width = max(map(len, names))
    said = [f"{name.ljust(width)}  {ALL_METHODS.get(name, '')}".rstrip() for name in names]
    effort = found.effort
    said += [
        "",
        "planning       seconds until the step is compiled" + _profiles(found),
        f"step, spread   median of {effort.rounds * effort.copies} steps, half the distance of the quartiles; "
        + ("in random order, until every host has its results" if "hosts" in machine else _IN_ONE_PROCESS),
        f"ratio to ILP   its time by that of {ILP} in the same rounds, median: below 1 is faster",
        _interval(effort),
        "memory         what one device needs, by the compiled program",
        "communicated   collectives of one step, and how many bytes one device puts into them",
    ]
    if found.of(CFP) is not None:
        said.append("predicted      what CFP's plan was thought to take, from the parts that it measured")
    said += _on_virtual_devices(found, machine)
    return said


def _interval(effort: Effort) -> str:
    if effort.copies == 1:
        return "95% interval   over the rounds; what one copy of a program gains or loses by where it lies is not in it"
    return f"95% interval   over the {effort.copies} compiled copies of each program"


def _on_virtual_devices(found: Compared, machine: dict[str, object]) -> list[str]:
    """A note on the meaning of times on virtual devices; empty for real ones."""
    if not _are_virtual(machine):
        return []
    return [
        f"The {found.case.num_devices} devices are virtual and share {machine['cores']} cores: times compare "
        "programs here, and say nothing about other machines."
    ]


def _profiles(found: Comparison) -> str:
    if found.profiled is None:
        return ""
    of = f"; CFP measured {found.profiled} programs for it"
    return f"{of}, beside {found.known} in its database from before" if found.known else of


def _planning(outcomes: Sequence[PipelineOutcome]) -> list[list[str]]:
    """The table of what planning took, with its header."""
    rows = [["method", "planning", *TIMERS, "rest", "alpa's programs", "CFP's programs"]]
    for each in outcomes:
        parts = each.choice.seconds
        cells = [each.planning_s, *parts.values(), each.planning_s - sum(parts.values())]
        seconds = [f"{cell:.1f} s" if cell >= _SHORTEST_S else "" for cell in cells]
        rows.append(
            [each.method, *seconds, str(each.choice.programs), "" if each.profiled is None else str(each.profiled)]
        )
    return rows


def _how(found: PipelineComparison) -> str:
    pipeline = found.pipeline
    stages = "stages chosen by alpa" if pipeline.stages is None else f"{pipeline.stages} stages"
    chosen = ", ".join(f"{outcome.method} {outcome.schedule}" for outcome in found.outcomes)
    schedule = f"schedule by costs ({chosen})" if pipeline.schedule == "auto" else pipeline.schedule
    return f"as a pipeline: {pipeline.layers} layers, {stages}, {schedule}"


def _pipeline_times(outcomes: Sequence[PipelineOutcome]) -> list[list[str]]:
    return [["method", *_STEP_COLUMNS, "predicted", "memory"], *map(_pipeline_row, outcomes)]


def _pipeline_row(outcome: PipelineOutcome) -> list[str]:
    predicted = "" if outcome.predicted_s is None else time_text(outcome.predicted_s)
    return [outcome.method, *_step_cells(outcome), predicted, size_text(outcome.memory_bytes)]


def _stages(outcomes: Sequence[PipelineOutcome]) -> list[list[str]]:
    rows = [
        [
            f"{outcome.method}, {number}",
            layers_text(stage.layers),
            shape_text(stage.submesh),
            shape_text(stage.logical_mesh),
            "" if stage.cost_s is None else time_text(stage.cost_s),
            size_text(stage.memory_bytes),
        ]
        for outcome in outcomes
        for number, stage in enumerate(outcome.stages)
    ]
    return [["stage", *_STAGE_COLUMNS], *rows]


def _pipeline_verdict(found: PipelineComparison) -> list[str]:
    said = _wrong(found)
    for number, each in enumerate(found.outcomes):
        own = [stage.layers for stage in each.stages], [stage.submesh for stage in each.stages]
        for other in found.outcomes[:number]:
            if own == ([stage.layers for stage in other.stages], [stage.submesh for stage in other.stages]):
                said.append(f"{each.method} has the same layers on the same submeshes as {other.method}")
                break
    said += [_against_ilp(f"The step of {each.method}", each.to_ilp) for each in found.outcomes if each.to_ilp]
    if (agreed := found.agreement) is not None:
        said.append(
            f"The costs that {COMPOSED} put together for {agreed.stages} candidate stages are "
            f"{agreed.median_ratio:.2f} of what alpa measured for {CFP} (median); their rank correlation is "
            f"{agreed.rank_correlation:.2f}"
        )
    return said or ["no two of the methods can be compared"]


def _pipeline_meaning(found: PipelineComparison, machine: dict[str, object]) -> list[str]:
    names = [outcome.method for outcome in found.outcomes]
    width = max(map(len, names))
    said = [f"{name.ljust(width)}  {PIPELINE_METHODS[name]}" for name in names]
    said += ["", "planning        seconds until the pipeline is compiled and its meshes are there"]
    if found.pipeline.stages is None:
        said += [
            "plan            of it: CFP plans candidate stages",
            "compile         of it: alpa compiles them; profile: it times them; search: its dynamic programme",
            "rest            of it: tracing, sharding the chosen stages, compiling them, starting the meshes",
            "alpa's programs what alpa compiled of candidate stages",
            "cost            what a micro-batch takes in a stage, by the table that the stages are chosen by",
            "predicted       the costs of the stages, and the largest one once more for each further micro-batch",
        ]
    if any(each.profiled is not None for each in found.outcomes):
        before = f", beside {found.known} that were in its database before" if found.known else ""
        said.append(f"CFP's programs  what CFP compiled and timed{before}")
    how = "all at once, in random order" if found.are_interleaved else _IN_TURN
    said += [
        f"step, spread    median of {found.effort.rounds} steps, half the distance of the quartiles; {how}",
        "memory          what one device needs for the largest program; inputs of further micro-batches are not in it",
        *_on_virtual_devices(found, machine),
    ]
    return said
