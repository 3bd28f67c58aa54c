"""A comparison as a picture: takes a `Comparison` and a file; draws time, communication and memory by method.

Invariant: matplotlib, which is an optional dependency, is imported here only, when a picture is drawn.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from alpa_cfp_bench.case import CFP, ILP, METHODS_BRIEFLY
from alpa_cfp_bench.running import Comparison, Outcome
from alpa_cfp_bench.table import place, title
from alpa_cfp_bench.text import size_text, time_text

_CFP_COLOUR, _ILP_COLOUR, _OTHER_COLOUR = "#c8502d", "#33638d", "#a9b4bf"
_KIND_COLOURS = {
    "all-reduce": "#5f9e6e",
    "all-gather": "#b3d6b8",
    "reduce-scatter": "#d9a441",
    "all-to-all": "#7d5ba6",
    "collective-permute": "#b56576",
}
_TEXT_COLOUR = "#333333"
_ROW_INCHES, _LEGEND_INCHES = 0.6, 0.55
# Lower than with so many, the words below the axes would meet.
_FEWEST_ROWS = 3


def draw(found: Comparison, machine: dict[str, object], path: Path | str) -> None:
    """Write the picture; the file's ending says in which format (png, svg, pdf).

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file cannot be written.
        ValueError: there is no such format.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    outcomes = tuple(reversed(found.outcomes))  # the first one on top
    figure = Figure(figsize=(13.5, 2.2 + _ROW_INCHES * max(len(outcomes), _FEWEST_ROWS)), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    times, traffic, memory = figure.subplots(1, 3, sharey=True, width_ratios=[2.2, 1.5, 1])
    _draw_times(times, outcomes)
    _draw_traffic(traffic, outcomes)
    _draw_memory(memory, outcomes)
    _name_rows(times, outcomes)
    for axes in (times, traffic, memory):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    figure.suptitle(title(found), fontsize=13, fontweight="bold", color=_TEXT_COLOUR)
    figure.supxlabel(place(machine), fontsize=8, color="#666666")
    figure.savefig(path)


def _name_rows(axes: Any, outcomes: Sequence[Outcome]) -> None:
    """Each method's name, and below it what it does."""
    axes.set_yticks(range(len(outcomes)), ["" for _ in outcomes])
    for row, outcome in enumerate(outcomes):
        for words, offset, size, colour in (
            (outcome.method, 6, 10, _TEXT_COLOUR),
            (METHODS_BRIEFLY.get(outcome.method, ""), -6, 8, "#777777"),
        ):
            axes.annotate(
                words,
                (0, row),
                xytext=(-8, offset),
                xycoords=axes.get_yaxis_transform(),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=size,
                color=colour,
                fontweight="bold" if outcome.method == CFP and offset > 0 else "normal",
                annotation_clip=False,
            )


def _draw_times(axes: Any, outcomes: Sequence[Outcome]) -> None:
    axes.set_title("time of a step (less is better)", fontsize=10)
    axes.set_xlabel("ms; line: middle half of the steps")
    longest = max((_quartiles_ms(each)[2] for each in outcomes), default=0.0) or 1.0
    axes.set_xlim(0, 1.42 * longest)
    predicted = None
    for row, outcome in enumerate(outcomes):
        if outcome.samples is None:
            axes.text(0.01 * longest, row, "wrong result, not timed", va="center", color="#b00020", fontsize=9)
            continue
        low, median, high = _quartiles_ms(outcome)
        axes.barh(row, median, height=0.66, color=_colour(outcome.method))
        axes.plot([low, high], [row, row], color=_TEXT_COLOUR, linewidth=1.4, solid_capstyle="butt")
        if outcome.predicted_s is not None:
            at = outcome.predicted_s * 1e3
            (predicted,) = axes.plot([at], [row], "D", color="white", markeredgecolor=_TEXT_COLOUR, markersize=6)
            high = max(high, at)
        words = time_text(outcome.samples.median_s)
        if outcome.to_ilp is not None:
            words += f"  ({outcome.to_ilp.paired:.2f} of the ILP's)"
        axes.text(high + 0.03 * longest, row, words, va="center", fontsize=9, color=_TEXT_COLOUR)
    if predicted is not None:
        _explain(axes, {"what CFP predicted": predicted}, len(outcomes))


def _draw_traffic(axes: Any, outcomes: Sequence[Outcome]) -> None:
    axes.set_title("what one device communicates a step", fontsize=10)
    scale, unit = _scale([sum(each.size_bytes for each in outcome.traffic) for outcome in outcomes])
    axes.set_xlabel(f"{unit}; beside it: number of collectives")
    drawn: dict[str, Any] = {}
    longest = 0.0
    for row, outcome in enumerate(outcomes):
        start = 0.0
        for each in outcome.traffic:
            length = each.size_bytes / scale
            colour = _KIND_COLOURS.get(each.kind, _OTHER_COLOUR)
            drawn[each.kind] = axes.barh(row, length, left=start, height=0.66, color=colour)
            start += length
        longest = max(longest, start)
        axes.annotate(
            str(sum(each.count for each in outcome.traffic)),
            (start, row),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=_TEXT_COLOUR,
        )
    axes.set_xlim(0, 1.12 * longest or 1.0)
    if drawn:
        _explain(axes, drawn, len(outcomes))


def _explain(axes: Any, drawn: dict[str, Any], rows: int) -> None:
    """A legend below the axes' own words."""
    # In parts of the axes' height, which is nearly so many inches.
    below = -_LEGEND_INCHES / (_ROW_INCHES * max(rows, _FEWEST_ROWS) + 0.7)
    axes.legend(
        drawn.values(),
        drawn.keys(),
        fontsize=8,
        frameon=False,
        loc="upper center",
        bbox_to_anchor=(0.5, below),
        ncols=3,
    )


def _draw_memory(axes: Any, outcomes: Sequence[Outcome]) -> None:
    axes.set_title("memory of one device", fontsize=10)
    scale, unit = _scale([outcome.memory_bytes for outcome in outcomes])
    axes.set_xlabel(unit)
    for row, outcome in enumerate(outcomes):
        axes.barh(row, outcome.memory_bytes / scale, height=0.66, color=_colour(outcome.method))
        axes.annotate(
            size_text(outcome.memory_bytes),
            (outcome.memory_bytes / scale, row),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=_TEXT_COLOUR,
        )
    axes.set_xlim(0, 1.35 * max(outcome.memory_bytes for outcome in outcomes) / scale or 1.0)


def _colour(method: str) -> str:
    return {CFP: _CFP_COLOUR, ILP: _ILP_COLOUR}.get(method, _OTHER_COLOUR)


def _quartiles_ms(outcome: Outcome) -> tuple[float, float, float]:
    if outcome.samples is None:
        return 0.0, 0.0, 0.0
    ordered = sorted(outcome.samples.seconds)
    last = len(ordered) - 1
    return ordered[round(last / 4)] * 1e3, outcome.samples.median_s * 1e3, ordered[round(3 * last / 4)] * 1e3


def _scale(sizes: Sequence[int]) -> tuple[float, str]:
    largest = max(sizes, default=0)
    return (1e9, "GB") if largest >= 1e9 else (1e6, "MB") if largest >= 1e6 else (1e3, "kB")
