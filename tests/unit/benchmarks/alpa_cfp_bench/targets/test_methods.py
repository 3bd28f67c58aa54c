"""Plans by each method for a small model; none is compiled here: the compilers have tests in `tests/targets`."""

from typing import Any

import pytest

from alpa_cfp import target
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp_bench.targets import methods
from alpa_cfp_bench.targets.methods import Planned
from alpa_cfp_bench.targets.modelled import model_flops_utilisation
from alpa_cfp_bench.workloads.published import Case
from unit.benchmarks.alpa_cfp_bench.targets.target_cases import small_case, small_step

pytestmark = pytest.mark.slow


def partitioned(planned: Planned) -> Any:
    return HloModule.from_serialized(planned.module).partitioned


def test_hand_made_plans_are_partitioned_for_all_devices_and_differ() -> None:
    found = methods.by_hand(small_case(), small_step(), ("data parallel", "ZeRO-2", "ZeRO-3", "Megatron"))
    programs = [partitioned(each) for each in found.values()]
    assert list(found) == ["data parallel", "ZeRO-2", "ZeRO-3", "Megatron"]
    assert {each.mesh.num_devices for each in programs} == {8}
    assert len({each.bytecode for each in programs}) == len(programs)


def test_data_parallelism_by_hand_sums_up_gradients_and_gathers_nothing() -> None:
    found = methods.by_hand(small_case(), small_step(), ("data parallel",))
    assert {each.kind for each in partitioned(found["data parallel"]).collectives} == {"all-reduce"}


@pytest.mark.parametrize("setting", methods.ilp_settings(8, 1))
def test_the_ilp_plans_without_devices(setting: tuple[tuple[int, int], bool, bool]) -> None:
    planned = methods.by_ilp(small_case(), small_step(), *setting)
    module = HloModule.from_serialized(planned.module)
    assert module.solved
    assert module.mesh is not None
    assert module.mesh.shape == setting[0]


def test_by_propagation_the_state_is_whole_and_the_batch_split() -> None:
    module = HloModule.from_serialized(methods.by_propagation(small_case(), small_step()).module)
    assert module.input_shardings is not None
    splits = [sharding.is_replicated for sharding in module.input_shardings]
    assert splits == [True] * small_step().batch_from + [False] * (len(splits) - small_step().batch_from)


def test_the_flops_of_a_model_are_those_without_rematerialisation() -> None:
    model = small_case().model
    assert isinstance(model, Case)
    tokens = model.samples * model.sequence
    # 6 for each parameter and token; embeddings are products with one-hot rows, which want no gradient.
    products = 6 * (12 * model.layers * model.hidden**2 + model.hidden * model.vocabulary)
    embeddings = 4 * model.hidden * (model.vocabulary + model.sequence)
    attention = 12 * model.layers * model.hidden * model.sequence
    assert small_step().flops == tokens * (products + embeddings + attention)


def test_a_step_of_all_peak_would_be_a_utilisation_of_one() -> None:
    peak = 8 * target("h100:1x8").chip.flops_per_s["f16"]
    assert model_flops_utilisation(small_case(), peak, 1.0) == pytest.approx(1.0)


@pytest.mark.parametrize(("devices", "hosts", "shape"), [(8, 1, (2, 4)), (32, 4, (4, 8)), (16, 2, (2, 8))])
def test_the_ilp_is_tried_along_one_axis_and_along_two(devices: int, hosts: int, shape: tuple[int, int]) -> None:
    assert {mesh for mesh, _, _ in methods.ilp_settings(devices, hosts)} == {(1, devices), shape}
