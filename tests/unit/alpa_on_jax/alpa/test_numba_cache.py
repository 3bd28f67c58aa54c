"""What numba has compiled of alpa's dynamic programmes is there in the next process, and is not needed."""

import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest
from alpa import util

CHOOSE = """
import numpy as np
from alpa.pipeline_parallel import stage_construction
costs = np.random.default_rng(0).random((3, 3, 2, 1))
print(stage_construction.training_dp(3, 2, 4, [(1, 1), (1, 2)], 1, costs, np.full((3, 3, 2, 1), 8)))
(programme,) = (
    cell.cell_contents
    for cell in stage_construction.training_dp_impl.__closure__
    if hasattr(cell.cell_contents, "stats")
)
print(sum(programme.stats.cache_hits.values()), sum(programme.stats.cache_misses.values()))
"""


def chosen(cache: Path) -> list[str]:
    """What a process prints that chooses stages: the choice, then how often numba found it compiled, and did not."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, "-W", "ignore", "-c", CHOOSE]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


def test_the_programme_of_stages_is_compiled_by_the_first_process_only(tmp_path: Path) -> None:
    first, second = chosen(tmp_path), chosen(tmp_path)
    assert (first[1], second[1]) == ("0 1", "1 0")
    assert first[0] == second[0]


def test_a_function_with_numbers_of_one_model_in_it_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    layers = 3

    @util.maybe_numba_jit
    def doubled() -> int:
        return 2 * layers

    assert doubled() == 6
    assert not list(tmp_path.rglob("*.nbc"))


def test_where_nothing_can_be_kept_it_compiles_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("cannot cache function: no locator available")

    monkeypatch.setattr("numba.core.dispatcher.Dispatcher.enable_caching", refuse)
    assert util.maybe_numba_jit(_doubled)(3) == 6


def _doubled(layers: int) -> int:
    return 2 * layers
