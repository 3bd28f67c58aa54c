"""What is printed after the runs: a table of losses, how far the curves are apart, and a picture of them.

Takes the curves by method; the first one is what the others are held against.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gpt.training import Curve

# float32 rounds at 6e-8. Sums over devices differ in order, and each step passes its differences on to the next ones.
TOLERANCE = 1e-3


def largest_difference(curves: Mapping[str, Curve]) -> float:
    """The largest relative difference of a loss from that of the first curve at the same step, 0 without others."""
    first, *others = [np.asarray(curve.losses) for curve in curves.values()]
    return max((float(np.max(np.abs(other / first - 1))) for other in others), default=0.0)


def table(curves: Mapping[str, Curve]) -> str:
    """The losses of some steps: the mean of the training losses since the row before, and the validation loss."""
    rows = [" step" + "".join(f"{method + ' train':>15}{'validation':>13}" for method in curves)]
    steps = sorted(next(iter(curves.values())).validation)
    for before, step in zip([0, *steps], steps, strict=False):
        values = [(np.mean(curve.losses[before:step]), curve.validation[step]) for curve in curves.values()]
        rows.append(f"{step:>5}" + "".join(f"{training:>15.6f}{validation:>13.6f}" for training, validation in values))
    return "\n".join(rows)


def save_picture(curves: Mapping[str, Curve], path: Path) -> None:
    """Draw the curves, and below how far each is from the first one.

    Raises:
        ImportError: there is no matplotlib.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 6), layout="constrained")
    FigureCanvasAgg(figure)
    losses, differences = figure.subplots(2, 1, sharex=True, height_ratios=(2, 1))
    first_name, first = next(iter(curves.items()))
    styles = ("-", "--", ":")
    for (method, curve), style in zip(curves.items(), styles, strict=False):
        steps = np.arange(1, len(curve.losses) + 1)
        line = losses.plot(steps, curve.losses, style, lw=1.5, label=method)[0]
        losses.plot(list(curve.validation), list(curve.validation.values()), "o", ms=4, color=line.get_color())
        if method != first_name:
            apart = np.abs(np.asarray(curve.losses) / np.asarray(first.losses) - 1)
            differences.semilogy(steps, np.maximum(apart, 1e-9), style, color=line.get_color(), label=method)
    losses.set(ylabel="loss, nats a byte", title="training loss by step; dots: validation")
    losses.legend()
    differences.set(xlabel="step", ylabel=f"relative difference\nfrom {first_name}")
    differences.axhline(TOLERANCE, color="grey", lw=0.8)
    figure.savefig(path, dpi=120)
