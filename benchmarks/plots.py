"""Pictures of benchmark results: step time by method, predicted against measured, planning time by depth.

Takes the JSON files of `benchmarks/results/` of one version of jax; writes `results/<picture>.svg`. Invariants: nothing
is measured here; the same results give the same files, byte for byte, with the same matplotlib; a picture whose results
are missing is not drawn, and the program says so; a file is smaller than 100 kB (`_compact`).

Colours are those of Okabe and Ito, which people with any colour vision can tell apart; markers and order say the same.
"""

import argparse
import io
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, Locator, MultipleLocator, NullFormatter

from benchmarks.reports import commands_of, newest_of_cases, read

RESULTS = Path(__file__).resolve().parent / "results"
Results = list[dict[str, Any]]

_BLUE, _ORANGE, _SKY, _YELLOW, _PURPLE, _GREY = "#0072b2", "#d55e00", "#56b4e9", "#e69f00", "#8e5a9b", "#8a8f94"
_METHODS = {
    "cfp": ("CFP", _ORANGE),
    "alpa-ilp": ("Alpa's ILP", _BLUE),
    "alpa-ilp-given": ("the ILP on the mesh as given", "#009e73"),
    "data-parallel": ("data parallel", _GREY),
    "zero2": ("ZeRO-2", _SKY),
    "zero3": ("ZeRO-3", _YELLOW),
    "megatron": ("Megatron", _PURPLE),
    "propagation": ("propagation", "#333333"),
}
_ORIGINS = {
    "best": ("best predicted", _ORANGE, "D"),
    "data parallel": ("data parallel", _GREY, "o"),
    "ZeRO-2": ("ZeRO-2", _SKY, "^"),
    "ZeRO-3": ("ZeRO-3", _YELLOW, "v"),
    "Megatron": ("Megatron", _PURPLE, "s"),
    "drawn": ("others", _BLUE, "."),
}
_MODELS = {
    "gpt": "GPT",
    "llama": "LLaMA",
    "moe": "MoE",
    "wide_resnet": "Wide-ResNet",
    "bert": "BERT",
    "mlp": "MLP",
    "mlp_wide": "MLP, wide, batch of 2",
    "gpt_wide": "GPT, wide, batch of 2",
    "gpt_vocabulary": "GPT, vocabulary of 32,000",
    "llama_long": "LLaMA, long sequences, batch of 2",
    "t5": "T5",
    "vit": "ViT",
    "unet": "U-Net",
    "lstm": "LSTM",
    "gpt_bf16": "GPT in bfloat16",
}
_ERROR = 0.15
# Bars of steps that take so many times as long as with the ILP are cut off.
_CUT = 2.0
# What says of which case a row is.
_CASES = ("model", "mesh", "case", "layers")
_TAG = re.compile(r"<[^<>]*>")
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
# A marker that is drawn many times, what it is drawn with, and each time.
_MARKER = re.compile(r'<path id="([^"]*)" d="[^"]*" style="([^"]*)"/>')
_USE = re.compile(r'(<use xlink:href="#([^"]*)"[^>]*) style="([^"]*)"/>')
# Turns by nothing, and indentation.
_IDLE = re.compile(r' transform="rotate\(-?0 [^)]*\)"|^ +(?=<)', re.MULTILINE)
_STYLE: Any = {
    "svg.hashsalt": "alpa_cfp",
    # Text stays text: small files, and what a picture says can be searched.
    "svg.fonttype": "none",
    "font.family": ["sans-serif"],
    # Each text carries this list; a browser without the font takes its own.
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.axisbelow": True,
    "grid.color": "#e3e6e8",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Draw what there are results for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--jax", default="0.10.2", metavar="VERSION", help="whose results (default 0.10.2)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where they lie, and where pictures go")
    options = parser.parse_args(argv)
    drawn = 0
    for name, (needed, draw) in PICTURES.items():
        paths = [options.results / f"{benchmark}-jax{options.jax}.json" for benchmark in needed]
        missing = [path.name for path in paths if not path.is_file()]
        if missing:
            print(f"{name}.svg: not drawn, there is no {' and no '.join(missing)}")
            continue
        reports = list(map(read, paths))
        path = options.results / f"{name}.svg"
        path.write_bytes(svg(draw(*map(_rows, reports)), _origin(reports)))
        print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")
        drawn += 1
    return 0 if drawn else 2


def svg(figure: Figure, origin: str = "") -> bytes:
    """A figure as SVG, with where its numbers come from below it."""
    if origin:
        figure.supxlabel(origin, fontsize=7, color="#666666", x=0.01, ha="left")
    file = io.BytesIO()
    with mpl.rc_context(_STYLE):
        FigureCanvasSVG(figure).print_svg(file, metadata={"Date": None, "Creator": None})
    return _compact(file.getvalue().decode()).encode()


def _compact(text: str) -> str:
    """An SVG file of matplotlib with places to a hundredth of a point, and without what changes nothing.

    Only tags are touched: a number that is shown keeps its digits.
    """
    styles = {name: style.split("; ") for name, style in _MARKER.findall(text)}

    def shorter(tag: re.Match[str]) -> str:
        return _LONG_NUMBER.sub(lambda number: f"{round(float(number[0]), 2):g}", tag[0])

    def unrepeated(use: re.Match[str]) -> str:
        # What the marker says itself holds for each of its uses.
        own = "; ".join(each for each in use[3].split("; ") if each not in styles.get(use[2], ()))
        return f'{use[1]} style="{own}"/>' if own else f"{use[1]}/>"

    return _IDLE.sub("", _USE.sub(unrepeated, _TAG.sub(shorter, text)))


def step_times(race: Results) -> Figure:
    """Time of a step by method, by that of Alpa's ILP with all shapes of the mesh, a panel a model.

    Cases that were measured before the ILP had all shapes are left out.
    """
    race = [each for each in race if "alpa-ilp-given" in each["methods"]]
    with mpl.rc_context(_STYLE):
        models = list(dict.fromkeys(each["model"] for each in race))
        figure = Figure(figsize=(10, 1.1 + 2.6 * -(-len(models) // 2)), layout="constrained")
        columns = min(2, len(models))
        grid = figure.subplots(-(-len(models) // columns), columns, sharey=True, squeeze=False)
        for axes in grid.flat[len(models) :]:
            axes.set_visible(False)
        highest = 1.0
        for axes, model in zip(grid.flat, models, strict=False):
            cases = [each for each in race if each["model"] == model]
            highest = max(highest, _draw_race(axes, cases))
            _title(axes, str(_MODELS.get(model, model)))
        grid[0, 0].set_ylim(0, 1.12 * min(highest, _CUT))
        for axes in grid[:, 0]:
            axes.set_ylabel("time of a step\nby that of Alpa's ILP")
        handles: dict[str, Any] = {}
        for axes in grid.flat:
            handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=len(handles))
    return figure


def _draw_race(axes: Axes, cases: Results) -> float:
    """One model's bars, a group a mesh; the highest one."""
    methods = [name for name in _METHODS if any(name in case["methods"] for case in cases)]
    width, highest = 0.84 / len(methods), 0.0
    for place, name in enumerate(methods):
        label, colour = _METHODS[name]
        heights = []
        for group, case in enumerate(cases):
            if name not in case["methods"]:
                continue
            ratio = case["methods"][name]["samples"]["median_ms"] / case["methods"]["alpa-ilp"]["samples"]["median_ms"]
            at = group + (place - (len(methods) - 1) / 2) * width
            # Numbers on all bars of all models would be more than the picture.
            if name == "cfp" or ratio > _CUT:
                top = min(ratio, _CUT) + 0.02
                axes.text(at, top, f"{ratio:.2f}", ha="center", va="bottom", rotation=90, fontsize=6.5)
            heights.append((at, ratio))
        axes.bar(*zip(*heights, strict=True), width=0.92 * width, color=colour, label=label)
        highest = max(highest, *(ratio for _, ratio in heights))
    axes.axhline(1, color=_BLUE, linewidth=1, linestyle="--", zorder=0.5)
    axes.grid(axis="y")
    axes.yaxis.set_major_locator(MultipleLocator(0.5))
    ilp = [case["methods"]["alpa-ilp"]["samples"]["median_ms"] for case in cases]
    axes.set_xticks(
        range(len(cases)), [f"{case['mesh']}\nILP {each:.0f} ms" for case, each in zip(cases, ilp, strict=True)]
    )
    axes.tick_params(axis="x", length=0)
    return highest + 0.1


def predictions(found: Results) -> Figure:
    """Predicted against measured time of whole plans, a panel a case."""
    with mpl.rc_context(_STYLE):
        columns = min(3, len(found))
        rows = -(-len(found) // columns)
        figure = Figure(figsize=(3.5 * columns, 0.8 + 3.3 * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes in grid.flat[len(found) :]:
            axes.set_visible(False)
        for axes, case in zip(grid.flat, found, strict=False):
            _draw_predictions(axes, case)
        for axes in grid[:, 0]:
            axes.set_ylabel("predicted, ms")
        for axes in grid[-1]:
            axes.set_xlabel("measured, ms")
        handles: dict[str, Any] = {}
        for axes in grid.flat:
            handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        # Drawn last, so that it is on top, and named first.
        figure.legend(
            *zip(*reversed([(each, label) for label, each in handles.items()]), strict=True),
            loc="outside upper center",
            ncols=4,
        )
    return figure


def _draw_predictions(axes: Axes, case: dict[str, Any]) -> None:
    plans = case["plans"]
    times = [plan[name] * 1e3 for plan in plans for name in ("predicted_s", "measured_s")]
    ends = [min(times) / 1.15, max(times) * 1.15]
    axes.fill_between(
        ends,
        [each * (1 - _ERROR) for each in ends],
        [each * (1 + _ERROR) for each in ends],
        color="#eef0f2",
        linewidth=0,
        label=f"within {_ERROR:.0%}",
    )
    axes.plot(ends, ends, color="#666666", linewidth=1, linestyle="--", label="exact")
    for origin, (label, colour, marker) in reversed(_ORIGINS.items()):
        own = [plan for plan in plans if plan["origin"] == origin]
        axes.plot(
            [plan["measured_s"] * 1e3 for plan in own],
            [plan["predicted_s"] * 1e3 for plan in own],
            marker,
            color=colour,
            markersize=5 if marker != "." else 7,
            markeredgecolor="white",
            markeredgewidth=0.4,
            label=label if own else None,
        )
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(_Round())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.grid()
    _title(axes, f"{_MODELS.get(case['model'], case['model'])} on {case['mesh']}")
    axes.text(
        0.97,
        0.04,
        f"rank correlation {case['rank']:.2f}\nmedian error {case['error']:.1%}",
        transform=axes.transAxes,
        ha="right",
        fontsize=8,
    )


class _Round(Locator):
    """1, 2, 5, 10, 20, ... or, over less than a factor of three, what lies closer."""

    def __call__(self) -> list[float]:
        assert self.axis is not None
        low, high = self.axis.get_view_interval()
        return self.tick_values(low, high)

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        digits = (1, 2, 5) if vmax / vmin > 6 else (1, 1.5, 2, 3, 4, 5, 7)
        values = [digit * 10.0**power for power in range(-3, 6) for digit in digits]
        return [value for value in values if vmin <= value <= vmax]


def planning(cfp: Results, ilp: Results) -> Figure:
    """Seconds of planning against layers, of CFP and of Alpa's ILP.

    The ILP plans large GPTs from shapes, CFP small ones that can be measured here: layer for layer the same ops.
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(6.4, 4.2), layout="constrained")
        axes = figure.subplots()

        def line(found: Results, seconds: Callable[[dict[str, Any]], float], **style: Any) -> None:
            ordered = sorted(found, key=lambda each: each["layers"])
            axes.plot(
                [each["layers"] for each in ordered],
                [seconds(each) for each in ordered],
                markersize=5,
                linewidth=1.6,
                **style,
            )

        for mesh, style in (("2x4", "-"), ("1x8", ":")):
            line(
                [each for each in ilp if each["mesh"] == mesh],
                lambda each: each["seconds"]["pass"],
                color=_BLUE,
                marker="s",
                linestyle=style,
                label=f"Alpa's ILP on {mesh}",
            )
        for name, style, label in (
            ("cold_s", "-", "CFP, with all that it measures"),
            ("analysis_s", "--", "CFP, of which finding blocks"),
            ("warm_s", ":", "CFP, the same program again"),
        ):
            line(cfp, lambda each, name=name: each[name], color=_ORANGE, marker="D", linestyle=style, label=label)
        axes.set(xscale="log", yscale="log", xlabel="layers of a GPT", ylabel="planning of a whole training step, s")
        layers = sorted({each["layers"] for each in [*cfp, *ilp]})
        axes.set_xticks(layers, [str(each) for each in layers])
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.grid()
        figure.legend(loc="outside upper center", ncols=2)
    return figure


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, fontsize=10, fontweight="bold", loc="left")


def _rows(report: dict[str, Any]) -> Results:
    """Each case as the last code that it was measured with has it; of several runs the last one."""
    return [case[-1][0] for case in newest_of_cases(report, _CASES)]


def _origin(reports: Sequence[dict[str, Any]]) -> str:
    runs = [case[-1][1] for report in reports for case in newest_of_cases(report, _CASES)]
    machine = runs[-1]["machine"]
    commands = "; ".join(commands_of(runs))
    place = f"{machine['cpu']}, {machine['cores']} cores, {machine['devices']}, jax {machine['versions']['jax']}"
    return f"{commands}\n{place}"


PICTURES: dict[str, tuple[tuple[str, ...], Callable[..., Figure]]] = {
    "step_time_by_method": (("cfp_race",), step_times),
    "predicted_against_measured": (("cfp_predictions",), predictions),
    "planning_time_by_depth": (("cfp_planning", "ilp_growth"), planning),
}

if __name__ == "__main__":
    sys.exit(main())
