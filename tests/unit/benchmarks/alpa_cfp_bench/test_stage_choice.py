"""Watching alpa choose stages changes nothing of it, and leaves nothing behind."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tqdm
from alpa.pipeline_parallel import stage_construction, stage_profiling

from alpa_cfp_bench import stage_choice
from alpa_cfp_bench.stage_choice import warm_up, watched


def test_what_alpas_functions_give_is_noted_and_given(monkeypatch: pytest.MonkeyPatch) -> None:
    table, more = np.array([[[[0.5]]]]), np.zeros((1, 1, 1, 1))
    monkeypatch.setattr(stage_construction, "get_compute_cost", lambda *args: (table, more))
    with watched(lambda: 7) as seen:
        get_compute_cost: Any = stage_construction.get_compute_cost
        assert get_compute_cost() == (table, more)
        cost, solution = stage_construction.training_dp(1, 1, 3, ((1, 1),), 1, table, np.zeros((1, 1, 1, 1), np.int64))
    assert cost == 1.5 == seen.latency_s(3)
    assert len(solution) == 1
    assert seen.chosen == ((0, 0, 0, 0),)
    assert seen.costs_s() == (0.5,)
    assert seen.profiled == 7


def test_afterwards_alpa_and_the_current_folder_are_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = stage_construction.get_compute_cost, stage_profiling.compile_all, tqdm.tqdm

    def fail() -> None:
        with watched():
            # As alpa does with its results.
            Path("profile-results.npy").write_text("")
            print("- Compile all stages")
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert (stage_construction.get_compute_cost, stage_profiling.compile_all, tqdm.tqdm) == before
    assert list(tmp_path.iterdir()) == []
    assert Path.cwd() == tmp_path
    assert capsys.readouterr().out == ""


def test_alpas_dynamic_programme_is_compiled_for_the_types_that_it_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[object, ...]] = []
    monkeypatch.setattr(stage_choice.stage_construction, "training_dp", lambda *args: given.append(args))
    warm_up(2, 4)
    _, devices, _, submeshes, _, costs, more = given[0]
    assert (devices, submeshes) == (8, ((1, 1), (1, 2), (1, 4), (2, 4)))
    assert [each.dtype for each in (costs, more) if isinstance(each, np.ndarray)] == [np.float64, np.int64]
