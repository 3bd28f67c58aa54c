"""`alpa-cfp bench --target`: the command line, the table and the exit code; no compiler is needed here."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from alpa_cfp.cli.bench_targets import ON_TARGETS
from alpa_cfp.cli.main import main
from alpa_cfp.targets import topology
from alpa_cfp.targets.errors import TargetCompilerError
from alpa_cfp_bench.targets import comparison
from alpa_cfp_bench.targets.table import NAMES
from unit.benchmarks.alpa_cfp_bench.targets.target_cases import row

BENCH = "bench --target h100:1x8 --model mlp"


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """The comparisons that were asked for; each method takes a millisecond, and CFP fails."""
    asked = []

    def rows(case: Any, methods: list[str], limits: Any, begin: Any) -> Iterator[Any]:
        asked.append((case, methods, limits))
        for method in methods:
            begin(method)
            if method == comparison.CFP:
                yield {"method": method, "failure": "it crashed", "fits": False}
            else:
                numbers = dict.fromkeys(("computing_s", "communicating_s", "hidden_s", "mfu", "planning_s"), 0.5)
                yield row(method, 0.001) | numbers | {"memory_bytes": 1000, "parameters": 10}

    monkeypatch.setattr(comparison, "rows_of_case", rows)
    monkeypatch.setattr(topology, "compiler_version", lambda target: "a compiler 1.0")
    return asked


def test_all_methods_are_compared_on_the_targets_own_mesh(
    compared: list[Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*BENCH.split(), "--json", str(tmp_path / "found.json"), "--memory-mb", "500"]) == 0
    ((case, methods, limits),) = compared
    assert (case.mesh, methods, limits.memory_budget_bytes) == ((8,), list(NAMES.values()), 500_000_000)
    printed = capsys.readouterr()
    assert "cfp has no step: it crashed" in printed.out
    assert "order: alpa-ilp ~ data-parallel" in printed.out
    assert "planning and compiling: zero3" in printed.err
    found = json.loads((tmp_path / "found.json").read_text())
    assert [each["method"] for each in found["methods"]] == list(ON_TARGETS)


def test_without_any_modelled_step_the_exit_code_is_1(compared: list[Any]) -> None:
    assert main([*BENCH.split(), "--methods", "cfp"]) == 1
    assert len(compared) == 1


def test_published_sizes_take_a_batch_and_a_mesh_of_their_own(compared: list[Any]) -> None:
    words = "bench --target h100:1x8 --model gpt-1.3b --batch 32 --mesh 2x4 --methods zero2 zero3"
    assert main(words.split()) == 0
    ((case, methods, _),) = compared
    assert (case.model.samples, case.mesh, methods) == (32, (2, 4), ["ZeRO-2", "ZeRO-3"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--target h10:1x8", "there is no chip called 'h10'. Did you mean h100?"),
        ("--target h100:1x8 --model llama-7c", "there is no model 'llama-7c': --model takes one of"),
        ("--target h100:1x8 --mesh 2x3", "h100:1x8 has 8 devices, and a mesh of it has as many"),
        ("--target h100:1x8 --mesh 8", "'8' is no mesh: --mesh takes two to eight sizes of at least 1"),
        ("--target h100:1x8 --ray local", "--target plans for devices that are not here: leave --ray out"),
        ("--target h100:1x8 --micro-batches 2", "--target plans a step without micro-batches"),
        ("--target h100:1x8 --method pipeshard", "--target plans a step on one mesh: leave --method pipeshard out"),
        (
            "--target h100:1x8 --rounds 5",
            "--rounds needs devices, and those of --target are not here: nothing is timed",
        ),
        ("--target h100:1x8 --copies 5", "--copies needs devices, and those of --target are not here"),
        ("--target h100:1x8 --picture a.png", "--picture needs devices, and those of --target are not here"),
        ("--target h100:1x8 --save-plan a", "--save-plan needs devices, and those of --target are not here"),
        ("--target h100:1x8 --methods alpa-ilp-given", "'alpa-ilp-given' cannot be compared on a target: of"),
        ("--target h100:1x8 --methods zero4", "'zero4' cannot be compared on a target: of --methods, cfp"),
        ("--target h100:1x8 --memory-mb 0", "--memory-mb is 0, and must be above zero"),
        ("--target h100:1x8 --limit-s -1", "--limit-s is -1, and must be above zero"),
        ("--memory-mb 5", "--memory-mb goes with a target: name it, such as --target h100:1x8"),
        ("--limit-s 5", "--limit-s goes with a target: name it"),
        ("--batch 5", "--batch goes with a target: name it"),
    ],
)
def test_wrong_use_is_one_line_that_says_what_to_do(
    words: str, message: str, compared: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *words.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert compared == []


def test_without_the_compiler_the_extra_is_named_before_anything_begins(
    compared: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(target: Any) -> str:
        raise TargetCompilerError.missing("jax-cuda12-plugin", "GPU", "0.10.2", "gpu-target")

    monkeypatch.setattr(topology, "compiler_version", missing)
    assert main(BENCH.split()) == 2
    assert "pip install 'alpa_cfp[gpu-target]'" in capsys.readouterr().err
    assert compared == []
