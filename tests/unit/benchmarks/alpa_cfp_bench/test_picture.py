"""The picture is drawn for every comparison that there can be."""

from pathlib import Path

import pytest

from alpa_cfp_bench.case import CFP, ILP
from alpa_cfp_bench.picture import draw
from alpa_cfp_bench.running import Comparison
from unit.benchmarks.alpa_cfp_bench.comparisons import MACHINE, comparison, outcome, wrong

pytestmark = pytest.mark.slow

pytest.importorskip("matplotlib")


@pytest.mark.parametrize(
    "found",
    [
        comparison(),
        comparison(outcome(CFP, 40.0), outcome(ILP, 50.0), wrong("zero3")),
        comparison(wrong("zero3")),
        comparison(outcome("propagation", 3.0, to_ilp=None, traffic=())),
    ],
    ids=["two methods", "one is wrong", "all are wrong", "no communication"],
)
def test_a_png_is_written_with_something_in_it(found: Comparison, tmp_path: Path) -> None:
    draw(found, MACHINE, tmp_path / "a.png")
    written = (tmp_path / "a.png").read_bytes()
    assert written.startswith(b"\x89PNG")

    from matplotlib.image import imread

    colours = imread(tmp_path / "a.png")[..., :3].reshape(-1, 3)
    assert len({tuple(colour) for colour in colours[::97]}) > 5


def test_the_svg_names_each_method(tmp_path: Path) -> None:
    import matplotlib

    with matplotlib.rc_context({"svg.fonttype": "none"}):
        draw(comparison(), MACHINE, tmp_path / "a.svg")
    drawn = (tmp_path / "a.svg").read_text()
    assert CFP in drawn
    assert ILP in drawn
    assert "0.80 of the ILP" in drawn
