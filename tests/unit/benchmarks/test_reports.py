"""Results are added to, never replaced, and say which code they are of."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import ages, code, reports

MACHINE: dict[str, Any] = {
    "date": "2026-01-01 00:00 UTC",
    "cpu": "a processor",
    "cores": 2,
    "devices": "8 x cpu",
    "python": "3.11",
    "versions": {"jax": "0.10.2"},
    "load_average": 0.5,
}


def run(number: int, ratio: float, model: str = "gpt") -> dict[str, Any]:
    return {
        "run": number,
        "command": f"python -m benchmarks.some --number {number}",
        "commit": f"c{number}",
        "machine": MACHINE,
        "results": [{"model": model, "ratio": ratio}],
        "table": [["model", "ratio"], [model, f"{ratio:.2f}"]],
    }


def report(*runs: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    codes: list[dict[str, Any]] = []
    for digest, each in runs:
        codes = reports.with_run(codes, digest, "What was compared.", each)
    return {"benchmark": "some", "codes": codes}


def test_a_second_run_of_the_same_code_stands_beside_the_first_on_the_page() -> None:
    page = "\n".join(reports.page_of(report(("a", run(1, 0.9)), ("a", run(2, 1.1)))))
    assert "| gpt | 0.90 | 1 |" in page
    assert "| gpt | 1.10 | 2 |" in page
    assert "commit c1." in page
    assert "commit c2." in page
    assert "Load average at the end: 0.5" in page


def test_a_run_that_measures_more_is_still_one_run() -> None:
    of_code = report(("a", run(1, 0.9)), ("a", run(1, 0.9) | {"results": [{"model": "gpt"}, {"model": "moe"}]}))
    (only,) = of_code["codes"]
    assert [row["model"] for row in reports.rows_of(only)] == ["gpt", "moe"]


def test_runs_of_earlier_code_stay_on_the_page_below_the_newest() -> None:
    page = "\n".join(reports.page_of(report(("a", run(1, 0.9)), ("b", run(2, 1.1)))))
    newest, earlier = page.split("## Of earlier code (c1)")
    assert "1.10" in newest
    assert "0.90" not in newest
    assert "0.90" in earlier


def test_what_is_said_of_a_case_is_the_median_of_its_runs() -> None:
    (of_code,) = report(*(("a", run(number, ratio)) for number, ratio in enumerate((0.8, 1.5, 0.9))))["codes"]
    assert reports.medians(reports.rows_of(of_code), ("model",), lambda row: row["ratio"]) == [0.9]


def test_a_case_is_as_the_last_code_measured_it_and_none_is_lost() -> None:
    runs = ("a", run(1, 0.9)), ("a", run(2, 0.8, "moe")), ("b", run(3, 1.1)), ("b", run(4, 1.2))
    found = {
        case[0][0]["model"]: [(row["ratio"], made["run"]) for row, made in case]
        for case in reports.newest_of_cases(report(*runs), ["model"])
    }
    assert found == {"gpt": [(1.1, 3), (1.2, 4)], "moe": [(0.8, 2)]}


@pytest.mark.parametrize(
    ("count", "said"),
    [(1, ["python -m benchmarks.some --number 0"]), (4, ["python -m benchmarks.some"])],
)
def test_many_commands_of_one_program_are_said_together(count: int, said: list[str]) -> None:
    assert reports.commands_of([run(number, 1.0) for number in range(count)]) == said


def test_the_page_of_ages_is_true_of_the_sources_as_they_are() -> None:
    assert (ages.RESULTS / "README.md").read_text() == ages.page(ages.RESULTS), "run `python -m benchmarks.ages`"


def test_each_page_of_results_is_made_of_its_file() -> None:
    for path in ages.RESULTS.glob("*.json"):
        content = reports.read(path)
        assert path.with_suffix(".md").read_text() == "\n".join(reports.page_of(content)) + "\n", path.name


def test_a_result_is_older_once_a_source_that_it_measures_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner, words = tmp_path / "alpa_cfp" / "search" / "a.py", tmp_path / "alpa_cfp" / "cli" / "b.py"
    for path in (planner, words):
        path.parent.mkdir(parents=True)
        path.write_text("1")
    monkeypatch.setattr(code, "ROOT", tmp_path)
    before, runtime = code.digest("cfp_race"), code.digest("transport")
    words.write_text("2")
    assert code.digest("cfp_race") == before
    planner.write_text("2")
    assert code.digest("cfp_race") != before
    assert code.digest("transport") == runtime
