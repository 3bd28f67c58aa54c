"""The solver's options as alpa sets them in the pass context."""

from collections.abc import Iterator

import pytest

from alpa_on_jax.xla_extension.auto_sharding.options import SolverOptions, options_of_pass_context
from alpa_on_jax.xla_extension.pass_context import clear_pass_context, set_pass_context

NEEDED = {"device_mesh_shape": [2, 4], "device_mesh_alpha": [1, 2], "device_mesh_beta": [0.5, 3]}


@pytest.fixture(autouse=True)
def _no_context_remains() -> Iterator[None]:
    yield
    clear_pass_context()


def _options(**values: object) -> SolverOptions:
    set_pass_context({f"auto_sharding::{name}": value for name, value in {**NEEDED, **values}.items()})
    return options_of_pass_context()


def test_what_alpa_leaves_out_has_its_default():
    assert _options() == SolverOptions((2, 4), (1.0, 2.0), (0.5, 3.0))


def test_minus_one_is_no_limit_and_no_forced_axis():
    found = _options(memory_budget_per_device=-1, force_batch_dim_to_mesh_dim=-1)
    assert found.memory_budget_bytes is None
    assert found.force_batch_dim_to_mesh_axis is None


def test_a_limit_and_a_forced_axis_are_read():
    found = _options(memory_budget_per_device=1e9, force_batch_dim_to_mesh_dim=0)
    assert found.memory_budget_bytes == 1e9
    assert found.force_batch_dim_to_mesh_axis == 0


@pytest.mark.parametrize("kind", ["all_gather", "all_to_all"])
def test_a_cost_counts_only_where_it_is_forced(kind):
    given = {f"{kind}_cost": 1e10}
    assert getattr(_options(**given, **{f"force_{kind}_cost": False}), f"{kind}_cost") is None
    assert getattr(_options(**given, **{f"force_{kind}_cost": True}), f"{kind}_cost") == 1e10


@pytest.mark.parametrize(
    "name",
    [
        "allow_replicated_parameters", "prefer_reduce_scatter", "reduce_scatter_grad_acc_friendly",
        "reduce_scatter_aggressive_partition", "batch_matmul_always_split_batch", "allow_recompute_heavy_op",
        "allow_mixed_mesh_shape",
    ],
)  # fmt: skip
def test_a_switch_is_what_alpa_sets(name):
    assert [getattr(_options(**{name: value}), name) for value in (True, False)] == [True, False]


def test_no_heuristic_is_an_empty_name():
    assert _options(force_simple_heuristic=None).force_simple_heuristic == ""
    assert _options(force_simple_heuristic="largest").force_simple_heuristic == "largest"
