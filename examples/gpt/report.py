"""The report after the runs: losses, differences from the serial run, the verdict; and a picture.

Takes the curves by method. What is said of differences needs all methods and the reordered run (`gpt.agreement`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpt.agreement import FLOOR, SERIAL, agreements, differences, explained_by_rounding
from gpt.training import REORDERED, Curve


def table(curves: Mapping[str, Curve]) -> str:
    """The losses of some steps: the mean of the training losses since the row before, and the validation loss."""
    shown = {method: curve for method, curve in curves.items() if method != REORDERED}
    rows = [" step" + "".join(f"{method + ' train':>15}{'validation':>13}" for method in shown)]
    steps = _rows(shown)
    for before, step in zip([0, *steps], steps, strict=False):
        values = [(np.mean(curve.losses[before:step]), curve.validation[step]) for curve in shown.values()]
        rows.append(f"{step:>5}" + "".join(f"{training:>15.6f}{validation:>13.6f}" for training, validation in values))
    return "\n".join(rows)


def difference_table(curves: Mapping[str, Curve]) -> str:
    """The largest relative difference of the training losses so far from those of the serial run, at the same steps."""
    apart = differences(curves)
    rows = [" step" + "".join(f"{method:>12}" for method in apart)]
    for step in _rows(curves):
        rows.append(f"{step:>5}" + "".join(f"{each[step - 1]:>12.1e}" for each in apart.values()))
    return "\n".join(rows)


def verdict(curves: Mapping[str, Curve]) -> tuple[bool, str]:
    """Whether all methods agree with the serial run, and the sentences that say so or what is wrong."""
    found = agreements(curves)
    faults = [f"FAILED: {method}: {each.fault}" for method, each in found.items() if each.fault is not None]
    if faults:
        return False, "\n".join(faults)
    steps = len(next(iter(found.values())).apart)
    close = min(int(np.sum(each.apart <= FLOOR)) for each in found.values())
    used = max(float(np.max(each.apart / each.allowed, initial=0.0)) for each in found.values())
    validation = max(each.validation for each in found.values())
    return True, (
        f"over {steps} steps {' and '.join(found)} stay as close to the {SERIAL} run as the {SERIAL} run to itself\n"
        f"with the sequences of each batch in reverse order (at most {used:.0%} of what is allowed):\n"
        f"the first {close} steps agree to {FLOOR:.0e}, the last validation losses to {100 * validation:.2g}%"
    )


def save_picture(curves: Mapping[str, Curve], path: Path) -> None:
    """Draw the curves, and with the reordered run among them how far each is from the serial one.

    Raises:
        ImportError: there is no matplotlib.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    compared = REORDERED in curves
    figure = Figure(figsize=(8, 6 if compared else 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2 if compared else 1, 1, sharex=True, squeeze=False)[:, 0]
    looks: dict[str, dict[str, Any]] = {
        method: {"color": f"C{i}", "ls": style}
        for i, (method, style) in enumerate(zip(curves, ("-", "--", ":"), strict=False))
    }
    # Behind the others, which lie on it.
    looks[REORDERED] = {"color": "grey", "ls": "-", "zorder": 1}
    losses = axes[0]
    for method, curve in curves.items():
        losses.plot(np.arange(1, len(curve.losses) + 1), curve.losses, lw=1.5, label=method, **looks[method])
        dots = looks[method] | {"ls": "", "marker": "o", "ms": 4}
        losses.plot(list(curve.validation), list(curve.validation.values()), **dots)
    losses.set(ylabel="loss, nats a byte", title="training loss by step; dots: validation")
    losses.legend()
    if compared:
        apart = differences(curves)
        steps = np.arange(1, len(apart[REORDERED]) + 1)
        axes[1].fill_between(
            steps, 1e-8, explained_by_rounding(apart[REORDERED]), color="0.93", lw=0, zorder=0, label="allowed"
        )
        for method, each in apart.items():
            axes[1].semilogy(steps, np.maximum(each, 1e-8), label=method, **looks[method])
        axes[1].set(ylabel=f"largest relative difference\nfrom {SERIAL} so far", ylim=(1e-8, None))
        axes[1].legend()
    axes[-1].set(xlabel="step")
    figure.savefig(path, dpi=120)


def _rows(curves: Mapping[str, Curve]) -> list[int]:
    """The steps after which every run has a validation loss."""
    return sorted(set.intersection(*(set(curve.validation) for curve in curves.values())))
