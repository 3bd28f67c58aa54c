"""A comparison of pipelines as text for a terminal: takes a `PipelineComparison` and the machine; gives lines.

Invariant: each number is explained below the tables, in words of a user.
"""

from collections.abc import Sequence

from alpa_cfp_bench.case import CFP, COMPOSED, PIPELINE_METHODS
from alpa_cfp_bench.pipelines import PipelineComparison, PipelineOutcome
from alpa_cfp_bench.stage_choice import TIMERS
from alpa_cfp_bench.table import (
    STEP_COLUMNS,
    against_ilp,
    filled,
    fitting,
    head,
    on_virtual_devices,
    size_text,
    step_cells,
    time_text,
    wrapped,
    wrong,
)

# What takes less has nothing to do.
_SHORTEST_S = 0.05
_STAGE_COLUMNS = ("layers", "submesh", "logical mesh", "cost", "memory")


def lines(found: PipelineComparison, machine: dict[str, object], width: int | None = None) -> list[str]:
    """The whole report: what ran, a row for each method, its stages, what the numbers mean.

    Args:
        found: What came out.
        machine: As `machine.describe` gives it.
        width: Of the terminal, which no line exceeds if it can be; None for lines as long as they are.
    """
    first, *rest = head(found, machine)
    return [
        *wrapped([f"{first}, {_how(found)}", *rest], width),
        "",
        *fitting(filled(planning_rows(found.outcomes)), width),
        "",
        *fitting(filled([["method", *STEP_COLUMNS, "predicted", "memory"], *map(_times, found.outcomes)]), width),
        "",
        *fitting(filled([["stage", *_STAGE_COLUMNS], *_stages(found.outcomes)]), width),
        "",
        *wrapped(_verdict(found), width),
        "",
        *wrapped(_meaning(found, machine), width),
    ]


def planning_rows(outcomes: Sequence[PipelineOutcome]) -> list[list[str]]:
    """The table of what planning took, with its header."""
    rows = [["method", "planning", *TIMERS, "rest", "alpa's programs", "CFP's programs"]]
    for each in outcomes:
        parts = each.choice.seconds
        cells = [each.planning_s, *parts.values(), each.planning_s - sum(parts.values())]
        seconds = [f"{cell:.1f} s" if cell >= _SHORTEST_S else "" for cell in cells]
        rows.append([each.method, *seconds, str(each.choice.programs), _number(each.profiled)])
    return rows


def _number(number: int | None) -> str:
    return "" if number is None else str(number)


def _how(found: PipelineComparison) -> str:
    pipeline = found.pipeline
    stages = "stages chosen by alpa" if pipeline.stages is None else f"{pipeline.stages} stages"
    return f"as a pipeline: {pipeline.layers} layers, {stages}, {pipeline.schedule}"


def _times(outcome: PipelineOutcome) -> list[str]:
    predicted = "" if outcome.predicted_s is None else time_text(outcome.predicted_s)
    return [outcome.method, *step_cells(outcome), predicted, size_text(outcome.memory_bytes)]


def _stages(outcomes: Sequence[PipelineOutcome]) -> list[list[str]]:
    return [
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


def layers_text(layers: Sequence[int]) -> str:
    """The layers of a stage, which follow each other: "0 to 2"."""
    return f"{layers[0]} to {layers[-1]}" if len(layers) > 1 else str(layers[0])


def shape_text(shape: Sequence[int]) -> str:
    """The shape of a mesh: "1x2"."""
    return "x".join(map(str, shape))


def _verdict(found: PipelineComparison) -> list[str]:
    said = wrong(found)
    for number, each in enumerate(found.outcomes):
        own = [stage.layers for stage in each.stages], [stage.submesh for stage in each.stages]
        for other in found.outcomes[:number]:
            if own == ([stage.layers for stage in other.stages], [stage.submesh for stage in other.stages]):
                said.append(f"{each.method} has the same layers on the same submeshes as {other.method}")
                break
    said += [against_ilp(f"The step of {each.method}", each.to_ilp) for each in found.outcomes if each.to_ilp]
    if (agreed := found.agreement) is not None:
        said.append(
            f"The costs that {COMPOSED} put together for {agreed.stages} candidate stages are "
            f"{agreed.median_ratio:.2f} of what alpa measured for {CFP} (median); their rank correlation is "
            f"{agreed.rank_correlation:.2f}"
        )
    return said or ["no two of the methods can be compared"]


def _meaning(found: PipelineComparison, machine: dict[str, object]) -> list[str]:
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
        *on_virtual_devices(found, machine),
    ]
    return said


_IN_TURN = "one method after the other, since the cluster has not the devices of all at once"
