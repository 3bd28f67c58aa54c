"""The benchmark of the ILP's growth runs as its users run it, here on models that are tiny."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TINY = "--hidden 16 --heads 2 --sequence 8 --vocabulary 32 --micro-batch 4 --meshes 1x2 --no-results"

# One process runs the benchmark for all of them.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("the growth of the ILP")]


def run(arguments: str) -> str:
    """What the benchmark prints."""
    command = [sys.executable, "-m", "benchmarks.ilp_growth", *TINY.split(), *arguments.split()]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def rows(output: str) -> list[dict[str, str]]:
    """The rows of the table, by the names of its columns."""
    table = [
        [cell.strip() for cell in line.strip("| ").split("|")] for line in output.splitlines() if line.startswith("|")
    ]
    header, _, *cells = table
    return [dict(zip(header, row, strict=True)) for row in cells]


@pytest.fixture(scope="module")
def measured() -> list[dict[str, str]]:
    """The rows for one, two and three layers."""
    return rows(run("--layers 1 2 3"))


def test_each_case_has_a_row(measured: list[dict[str, str]]) -> None:
    assert [row["case"] for row in measured] == ["1 layers 1x2", "2 layers 1x2", "3 layers 1x2"]


def test_each_layer_adds_the_same_number_of_values_and_of_variables(measured: list[dict[str, str]]) -> None:
    for column in ("values", "variables"):
        one, two, three = (int(row[column]) for row in measured)
        assert three - two == two - one > 0


def test_building_and_solving_are_timed(measured: list[dict[str, str]]) -> None:
    for row in measured:
        assert float(row["build in all, s"]) > float(row["simplify, s"]) > 0
        assert float(row["solve, s"]) > 0


def test_no_case_starts_when_the_time_is_up() -> None:
    output = run("--layers 1 --limit-s 0")
    assert "1 layers 1x2 and what follows is left out" in output
    assert rows(output) == []
