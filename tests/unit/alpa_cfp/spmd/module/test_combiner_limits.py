"""How much is combined into one collective, by platform."""

import jax
import jax.numpy as jnp
import pytest

from alpa_cfp.jit.tracing import trace
from alpa_cfp.spmd.module.combiner_limits import UNLIMITED_BYTES, CombinerLimits


def test_all_is_combined_on_cpus_where_a_collective_runs_beside_nothing():
    assert CombinerLimits.on("cpu") == CombinerLimits(UNLIMITED_BYTES, UNLIMITED_BYTES)


@pytest.mark.parametrize("platform", ["gpu", "tpu"])
def test_sums_for_accelerators_are_combined_as_far_as_xla_itself_combines_them(platform: str):
    limits = CombinerLimits.on(platform)
    assert limits.all_reduce_bytes == 30 * 2**20
    assert limits.all_reduce_bytes < limits.all_gather_bytes < UNLIMITED_BYTES


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_a_traced_function_has_the_limits_of_its_platform(platform: str):
    traced = trace(jnp.sin, [jax.ShapeDtypeStruct((4,), jnp.float32)], {}, (), platform)
    assert traced.module.combiner_limits == CombinerLimits.on(platform)
