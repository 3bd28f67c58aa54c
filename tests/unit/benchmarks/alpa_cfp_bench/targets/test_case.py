"""Cases by name: a model, a target and a mesh."""

import math

import jax
import pytest

from alpa_cfp import target
from alpa_cfp.targets.errors import TargetError
from alpa_cfp_bench.targets.case import Sized, TargetCase, usual_mesh
from alpa_cfp_bench.workloads.sizes import SIZES, TINY
from benchmarks import targets


@pytest.mark.parametrize("text", targets.CASES)
def test_each_case_is_a_published_model_on_a_target_that_exists_with_samples_for_all_devices(text: str) -> None:
    case = targets.case_of(text)
    assert case.model.samples % target(case.target).num_devices == 0
    assert math.prod(case.mesh) == target(case.target).num_devices


@pytest.mark.parametrize(
    ("name", "mesh"), [("h100:1x8", (8,)), ("h100:4x8", (4, 8)), ("v5e:4x4", (4, 4)), ("v5p:2x2x2", (8,))]
)
def test_the_usual_mesh_has_an_axis_of_hosts_or_is_the_torus(name: str, mesh: tuple[int, ...]) -> None:
    assert usual_mesh(target(name)) == mesh


def test_a_case_may_name_another_mesh() -> None:
    assert targets.case_of("gpt/1.3B@h100:1x8@2x4").mesh == (2, 4)


@pytest.mark.parametrize("text", ["gpt/1.4B@h100:1x8", "gpt@h100:1x8", "gpt/1.3B", "gpt/1.3B@h100:1x8@2x4@2"])
def test_a_case_without_a_model_or_a_target_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"there is no model|is no model@target"):
        targets.case_of(text)


@pytest.mark.parametrize("text", ["gpt/1.3B@h100:1x9", "gpt/1.3B@h100:1x8@3x4"])
def test_a_case_for_a_machine_or_a_mesh_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(TargetError):
        targets.case_of(text)


@pytest.mark.parametrize("model", ["mlp", "gpt_bf16", "lstm"])
def test_a_model_of_any_size_has_shapes_alone_and_its_own_samples(model: str) -> None:
    case = TargetCase.on(Sized(model, SIZES[model]), "h100:1x8", (2, 4))
    step = case.step()
    assert case.model.samples == SIZES[model].batch
    assert step.parameters > 1000
    assert not any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves((step.state, step.batch)))


def test_float32_products_are_held_against_the_peak_of_tf32_and_others_against_their_own() -> None:
    assert TargetCase.on(Sized("gpt", TINY), "h100:1x8").products_in == "tf32"
    assert TargetCase.on(Sized("gpt_bf16", TINY), "h100:1x8").products_in == "bf16"
    assert targets.case_of("gpt/350M@h100:1x8").products_in == "f16"
