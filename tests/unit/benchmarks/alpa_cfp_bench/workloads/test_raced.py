"""The models that planners are compared on: they are there, documented, and each has shardings by hand that fit."""

import re
from dataclasses import replace
from pathlib import Path

import jax
import pytest
from jax.sharding import PartitionSpec

from alpa_cfp_bench.case import CFP, ILP, METHODS, Case
from alpa_cfp_bench.methods import misfit
from alpa_cfp_bench.workloads.models import abstract
from alpa_cfp_bench.workloads.shardings import state_specs
from alpa_cfp_bench.workloads.sizes import RACED, SIZES

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[5] / "docs" / "benchmarks.md"


def test_at_least_fourteen_models_are_raced_and_each_has_a_size() -> None:
    assert len(RACED) >= 14
    assert set(RACED) <= set(SIZES)


def test_the_page_names_each_raced_model_with_the_reason() -> None:
    models, _, _ = PAGE.read_text().partition("\n## ")
    rows = re.findall(r"^\| (\w+) \| (.+) \|$", models, re.MULTILINE)
    assert dict(rows[1:]) == RACED


@pytest.mark.parametrize(("model", "block"), [("wide_resnet", "BottleneckResNetBlock"), ("conv", "ResNetBlock")])
@pytest.mark.parametrize("layers", [2, 5])
def test_a_residual_net_has_as_many_blocks_as_its_size_has_layers(model: str, block: str, layers: int) -> None:
    parameters = abstract(model, replace(SIZES[model], layers=layers)).state.params
    assert sum(name.startswith(f"{block}_") for name in parameters) == layers


@pytest.mark.parametrize("model", RACED)
def test_megatrons_shardings_by_hand_split_most_parameters(model: str) -> None:
    built = abstract(model, SIZES[model])
    specs = jax.tree.leaves(state_specs(built, "megatron").params, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec))
    sizes = [leaf.size for leaf in jax.tree.leaves(built.state.params)]
    split = sum(size for size, spec in zip(sizes, specs, strict=True) if any(spec))
    assert split > sum(sizes) / 2


@pytest.mark.parametrize("mesh", ["1x8", "2x4"])
@pytest.mark.parametrize("model", RACED)
def test_a_raced_model_fits_each_method_but_those_that_split_a_batch_of_two(model: str, mesh: str) -> None:
    reasons = {method: misfit(Case(model, mesh, SIZES[model]), method) for method in METHODS}
    unfit = {method: reason for method, reason in reasons.items() if reason}
    if SIZES[model].batch == 2:
        assert set(unfit) == {"data-parallel", "zero2", "zero3", "propagation"}
        assert set(unfit.values()) == {"2 samples cannot be split into 8 equal parts"}
    else:
        assert not unfit
    assert not {CFP, ILP} & set(unfit)
