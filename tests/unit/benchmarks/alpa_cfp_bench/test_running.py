"""Methods are planned, checked and timed; one that gives something else is reported and not timed."""

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from alpa_cfp import CFPOption
from alpa_cfp.cli.main import main
from alpa_cfp_bench import running
from alpa_cfp_bench.case import Case, Effort
from alpa_cfp_bench.methods import Planned, misfit, plan_method
from alpa_cfp_bench.programs import Program
from alpa_cfp_bench.progress import Progress
from alpa_cfp_bench.workloads.sizes import TINY

pytestmark = pytest.mark.slow

CASE = Case("mlp", "1x2", TINY)
EFFORT = Effort(rounds=2, copies=1)
METHODS = ("propagation", "megatron")


class WrongProgram(Program):
    """A step whose state is not what it should be."""

    @property
    def state(self) -> Any:
        state = super().state
        return state.replace(params=jax.tree.map(lambda leaf: 1.5 * leaf, state.params))


@pytest.fixture
def megatron_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every method is `propagation`; what is called "megatron" gives a wrong state."""

    def planned(case: Case, method: str, option: CFPOption, devices: Any, setting: Any) -> Planned:
        del setting
        found = plan_method(case, "propagation", option, devices)
        if method == "megatron":
            found.program.__class__ = WrongProgram
        return found

    monkeypatch.setattr(running, "plan_method", planned)


@pytest.mark.usefixtures("megatron_is_wrong")
def test_a_wrong_method_is_not_right_and_has_no_times() -> None:
    with Progress(running.steps_of(METHODS, EFFORT), io.StringIO()) as progress:
        found = running.compare(CASE, METHODS, EFFORT, CFPOption(), progress)
    right, wrong = found.outcomes
    assert right.is_right
    assert right.samples is not None
    assert len(right.samples.seconds) == 2
    assert not wrong.is_right
    assert wrong.samples is None
    assert wrong.difference.where.startswith("params/")
    assert not found.is_right


@pytest.mark.usefixtures("megatron_is_wrong")
def test_the_command_reports_a_wrong_method_and_ends_with_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = f"bench --model mlp --size tiny --mesh 1x2 --rounds 1 --copies 1 --methods {' '.join(METHODS)}"
    assert main([*words.split(), "--database", str(tmp_path / "profiles.sqlite")]) == 1
    said = capsys.readouterr()
    assert "megatron is WRONG: params/" in said.out
    assert "1 of 2 methods give the serial run's loss and state" in said.out
    assert said.err.splitlines() == [
        "the serial run",
        "planning propagation",
        "planning megatron",
        "timing 1 methods, 1 rounds",
    ]


@pytest.mark.parametrize(
    ("case", "method", "reason"),
    [
        (Case("mlp", "1x3", TINY), "data-parallel", "16 samples cannot be split into 3 equal parts"),
        (Case("mlp", "1x8", TINY, 4), "zero2", "4 samples cannot be split into 8 equal parts"),
        (Case("mlp", "3x1", TINY), "megatron", "16 samples cannot be split into 3 equal parts"),
        (Case("mlp", "1x3", TINY), "megatron", "has a dim of"),
        (Case("mlp", "1x3", TINY), "cfp", ""),
        (Case("mlp", "1x8", TINY), "megatron", ""),
        (Case("gpt", "2x4", dataclasses.replace(TINY, vocabulary=50)), "megatron", "has a dim of 50"),
    ],
    ids=str,
)
def test_a_method_that_does_not_fit_the_mesh_is_told_why(case: Case, method: str, reason: str) -> None:
    found = misfit(case, method)
    assert reason in found
    assert bool(found) == bool(reason)


@pytest.mark.parametrize("count", [None, 2])
def test_propagation_gives_what_the_serial_run_gives(count: int | None) -> None:
    case = dataclasses.replace(CASE, num_micro_batches=count)
    with Progress(1, io.StringIO()) as progress:
        found = running.compare(case, ("propagation",), EFFORT, CFPOption(), progress)
    assert found.is_right


def test_the_progress_has_as_many_steps_as_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[None] = []
    count: Callable[[Progress], None] = lambda self: taken.append(None)  # noqa: E731
    monkeypatch.setattr(Progress, "advance", count)
    methods = ("propagation",)
    with Progress(0, io.StringIO()) as progress:
        running.compare(CASE, methods, EFFORT, CFPOption(), progress)
    assert len(taken) == running.steps_of(methods, EFFORT)
