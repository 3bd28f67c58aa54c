"""MaxText's published rules: what they split of LLaMA, and which cases they do not fit."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import Mesh, PartitionSpec

from alpa_cfp_bench.case import MAXTEXT, Case
from alpa_cfp_bench.methods import misfit
from alpa_cfp_bench.workloads import llama
from alpa_cfp_bench.workloads.model import training_step
from alpa_cfp_bench.workloads.models import abstract
from alpa_cfp_bench.workloads.shardings import LOGICAL_AXIS_RULES, batch_spec, has_style, state_specs
from alpa_cfp_bench.workloads.sizes import MESH_AXES, SIZES, TINY

pytestmark = pytest.mark.slow


def test_weights_are_split_over_both_axes_and_norms_over_the_tensor_axis() -> None:
    params = state_specs(abstract("llama", TINY), MAXTEXT).params["params"]
    assert params["embedding"]["embedding"] == PartitionSpec("model", "data")
    assert params["head"]["kernel"] == PartitionSpec("data", "model")
    layer = params["layer_1"]
    for columns in ("q", "k", "v", "gate", "up"):
        assert layer[columns]["kernel"] == PartitionSpec("data", "model")
    for rows in ("o", "down"):
        assert layer[rows]["kernel"] == PartitionSpec("model", "data")
    assert layer["attention_norm"]["scale"] == params["norm"]["scale"] == PartitionSpec("model")
    assert batch_spec(MAXTEXT) == PartitionSpec("data")


def test_each_parameter_of_llama_has_logical_names() -> None:
    specs = state_specs(abstract("llama", TINY), MAXTEXT).params
    assert all(any(spec) for spec in jax.tree.leaves(specs, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec)))


def test_each_activation_of_llama_is_split_by_samples_and_along_the_tensor_axis() -> None:
    for names in (llama.RESIDUAL, llama.HEADS, llama.MLP, llama.LOGITS):
        spec = nn.logical_to_mesh_axes(names, LOGICAL_AXIS_RULES)
        assert spec is not None
        assert [axis for axis in spec if axis is not None] == ["data", "model"]
        assert spec[0] == "data"


def test_names_constrain_nothing_without_rules() -> None:
    model, mesh = abstract("llama", TINY), Mesh(np.array(jax.local_devices()[:8]).reshape(2, 4), MESH_AXES)

    def constraints() -> int:
        step = training_step(model, jax.value_and_grad)
        return jax.jit(step).lower(model.state, model.batch).as_text().count("sharding_constraint")

    assert constraints() == 0
    with jax.set_mesh(mesh):
        assert constraints() == 0
        with nn.logical_axis_rules(LOGICAL_AXIS_RULES):
            assert constraints() > 0


def test_only_llama_has_rules() -> None:
    assert [name for name in SIZES if has_style(abstract(name, TINY), MAXTEXT)] == ["llama", "llama_long"]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (Case("llama", "2x4", SIZES["llama"]), ""),
        (Case("llama_long", "2x4", SIZES["llama_long"]), ""),
        (Case("gpt", "2x4", SIZES["gpt"]), "there are rules for LLaMA only"),
        (Case("llama_long", "4x2", SIZES["llama_long"]), "2 samples cannot be split into 4 equal parts"),
        (Case("llama", "2x2x2", SIZES["llama"]), "its rules are for two axes"),
        (
            Case("llama", "2x4", replace(TINY, vocabulary=66)),
            "params/params/embedding/embedding has a dim of 66, which cannot be split into 4 equal parts",
        ),
    ],
)
def test_a_case_that_does_not_fit_has_a_reason(case: Case, reason: str) -> None:
    assert misfit(case, MAXTEXT) == reason
