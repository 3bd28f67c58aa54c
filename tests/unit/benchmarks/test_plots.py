"""Pictures of results: the same results give the same file, and every method and axis is named in it."""

import re
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from benchmarks import plots

pytestmark = pytest.mark.slow


def race() -> list[dict[str, Any]]:
    """Two methods on two meshes."""
    times = {"cfp": 8.0, "alpa-ilp": 10.0, "alpa-ilp-given": 12.0}
    methods = {name: {"samples": {"median_ms": each}} for name, each in times.items()}
    return [{"model": "gpt", "mesh": mesh, "methods": methods} for mesh in ("1x8", "2x4")]


def predictions() -> list[dict[str, Any]]:
    """Three plans of one case."""
    plans = [
        {"origin": origin, "predicted_s": 0.01 * number, "measured_s": 0.011 * number}
        for number, origin in enumerate(("best", "ZeRO-2", "drawn"), 1)
    ]
    return [{"model": "moe", "mesh": "1x8", "rank": 1.0, "error": 0.09, "plans": plans}]


def planning() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """CFP's and the ILP's seconds for two depths."""
    cfp = [{"layers": layers, "cold_s": 20.0, "analysis_s": 0.1, "warm_s": 0.01} for layers in (4, 8)]
    ilp = [{"layers": layers, "mesh": "2x4", "seconds": {"pass": layers / 2}} for layers in (4, 8)]
    return cfp, ilp


def drawn() -> dict[str, bytes]:
    """All pictures."""
    return {
        "race": plots.svg(plots.step_times(race()), "a command"),
        "predictions": plots.svg(plots.predictions(predictions())),
        "planning": plots.svg(plots.planning(*planning())),
    }


def test_the_same_results_give_the_same_files_byte_for_byte() -> None:
    assert drawn() == drawn()


def test_pictures_carry_no_date() -> None:
    assert all(b"dc:date" not in picture for picture in drawn().values())


@pytest.mark.parametrize(
    ("picture", "words"),
    [
        ("race", ["CFP", "Alpa's ILP", "GPT", "time of a step", "0.80", "ILP 10 ms", "a command"]),
        ("predictions", ["MoE on 1x8", "predicted, ms", "measured, ms", "best predicted", "ZeRO-2", "within 15%"]),
        ("planning", ["layers of a GPT", "step, s", "Alpa's ILP on 2x4"]),
    ],
)
def test_what_a_picture_shows_is_named_in_it(picture: str, words: list[str]) -> None:
    text = drawn()[picture].decode()
    assert [each for each in words if each not in text] == []


def test_a_case_from_before_the_ilp_had_all_shapes_is_not_drawn() -> None:
    older = {"model": "moe", "mesh": "1x8", "methods": {"cfp": race()[0]["methods"]["cfp"]}}
    assert b"MoE" not in plots.svg(plots.step_times([*race(), older]))


def test_a_picture_says_places_to_a_hundredth_of_a_point_and_is_still_xml() -> None:
    for picture in drawn().values():
        root = ElementTree.fromstring(picture)
        assert root.tag.endswith("svg")
        values = [value for each in root.iter() for value in each.attrib.values()]
        assert [value for value in values if re.search(r"\d\.\d{3}", value)] == []


def test_numbers_that_a_picture_shows_keep_their_digits() -> None:
    figure = Figure()
    figure.text(0.123456, 0.5, "0.123456")
    picture = plots.svg(figure).decode()
    assert ">0.123456<" in picture
    assert 'x="56.89"' in picture


def test_markers_keep_their_colours() -> None:
    figure = Figure()
    figure.subplots().plot([1, 2], [1, 2], "o", color="#123456", markeredgecolor="#fedcba")
    picture = plots.svg(figure).decode()
    (marker,) = re.findall(r'<path id="([^"]*)"[^>]*stroke: #fedcba', picture)
    uses = re.findall(rf'<use xlink:href="#{marker}"[^>]*/>', picture)
    assert len(uses) == 2
    assert all('style="fill: #123456"' in each for each in uses)


def test_pictures_in_the_repository_are_smaller_than_100_kB() -> None:
    sizes = {path.name: path.stat().st_size for path in plots.RESULTS.glob("*.svg")}
    assert len(sizes) >= len(plots.PICTURES)
    assert [name for name, size in sizes.items() if size >= 100_000] == []


def test_a_picture_without_results_is_said_and_not_drawn(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert plots.main(["--results", str(tmp_path)]) == 2
    assert "there is no cfp_race-jax0.10.2.json" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
