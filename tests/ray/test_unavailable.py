"""What needs Alpa's fork of jaxlib is refused where it is asked for, and the mesh goes on working."""

from collections.abc import Callable
from typing import Any

import alpa
import numpy as np
import pytest
from alpa.device_mesh import get_global_cluster

from alpa_on_jax import errors

CASES: dict[str, Callable[[Any], Any]] = {
    "overlapping": lambda mesh: setattr(alpa.global_config, "enable_overlapping", True),
    "profiling of ops": lambda mesh: mesh.profile_hlo_ops([("dot", (8, 8, 8, "f32"))], "cache.pkl"),
    "profiling of a cluster": lambda mesh: get_global_cluster().profile_all("cluster", 2, 2, 5, "cache.pkl"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_the_fork_of_jaxlib_is_needed_for_is_refused(mesh: Any, case: str) -> None:
    with pytest.raises(errors.NeedsForkError, match=r"Alpa's fork of jaxlib|builds its programs by XlaBuilder"):
        CASES[case](mesh)
    assert not alpa.global_config.enable_overlapping
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    double = alpa.parallelize(lambda x: x * 2, batch_argnums=(), method=alpa.ShardParallel())
    np.testing.assert_array_equal(np.asarray(double(x)), x * 2)
