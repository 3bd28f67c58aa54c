"""Files of checkpoints and of results are read as data: what they name beside is refused, and not run."""

import io
import os
import pickle
from pathlib import Path
from typing import Any

import alpa
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from alpa.pipeline_parallel.stage_profiling import ModuleProfileResult, StageProfileResult

from alpa_on_jax import data_pickles, errors


class Harmful:
    """Makes a file when it is read from a pickle."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def _pickled(value: Any, protocol: int = pickle.DEFAULT_PROTOCOL) -> io.BytesIO:
    return io.BytesIO(pickle.dumps(value, protocol))


def _saved(value: Any) -> io.BytesIO:
    file = io.BytesIO()
    np.save(file, value)
    file.seek(0)
    return file


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_the_description_of_a_saved_array_is_read(protocol: int) -> None:
    for dtype in ("float32", "int8", "bool", ml_dtypes.bfloat16):
        metadata = {
            "global_shape": (4, np.int64(2)),
            "dtype": np.dtype(dtype),
            "shard_names": ["shard_0.0"],
            "shard_indices": [(slice(0, 2, None), slice(None))],
        }
        assert data_pickles.load(_pickled(metadata, protocol)) == metadata


@pytest.mark.parametrize("written", [_pickled, _saved])
def test_results_of_stages_are_read(written: Any) -> None:
    result = StageProfileResult(1, ["a"], [8])
    result.add_module_profile_result(
        0, ModuleProfileResult(0.5, 1, 2, ("a",), ("b",), (8,), (8,), (False,), (), (), 99)
    )
    (found,) = data_pickles.load(written({(0, 1, 0, 0): result})).values()
    assert found.module_profile_results == result.module_profile_results
    assert found.initial_var_names == ("a",)


@pytest.mark.parametrize("written", [_pickled, _saved])
def test_what_names_anything_else_is_refused_and_not_run(written: Any, tmp_path: Path) -> None:
    trace = tmp_path / "was_run"
    with pytest.raises(errors.DataFileError, match=r"names posix\.system, which none of alpa's formats has"):
        data_pickles.load(written({"global_shape": Harmful(trace)}))
    assert not trace.exists()


def test_a_checkpoint_that_would_run_something_is_refused(tmp_path: Path) -> None:
    parallel = alpa.parallelize(lambda x: x + 1, batch_argnums=(), donate_argnums=())
    state = {"x": parallel(jnp.ones(8))}
    alpa.save_checkpoint(tmp_path / "checkpoint", state, 1)
    (metadata,) = (tmp_path / "checkpoint").rglob("metadata_0")
    metadata.write_bytes(pickle.dumps({"dtype": Harmful(tmp_path / "was_run")}))
    placements = {"x": parallel.get_last_executable().get_input_placement_specs()[0]}
    with pytest.raises(errors.DataFileError):
        alpa.restore_checkpoint(tmp_path / "checkpoint", 1, placements)
    assert not (tmp_path / "was_run").exists()
