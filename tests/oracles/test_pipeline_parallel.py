"""What Alpa decides for the stages of a pipeline, as Alpa's own `pipeline_parallel` tests expect it.

The dynamic programmes that choose the stages are in `test_stage_dynamic_programmes`.
"""

import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import alpa
import jax
import pytest
from alpa import AutoShardingOption, ManualLayerOption, PipeshardParallel, UniformStageOption
from alpa.pipeline_parallel.stage_profiling import (
    CompileWorker,
    ProfileWorker,
    StageProfileResult,
    compute_apply_grad_invar_size,
    generate_module_profile_result,
    generate_stage_info,
    get_merged_stages_memory_stats,
)
from alpa.testing import get_bert_layer_train_state_and_step, get_mlp_train_state_and_step
from alpa.util import count_communication_primitives

from oracles.pipeline_layers import layers_of

MICRO_BATCHES = 4
NONE, SUM, GATHER = (0, 0, 0, 0, 0), (1, 1, 0, 0, 0), (1, 0, 1, 0, 0)


@pytest.fixture(autouse=True)
def local() -> Iterator[None]:
    """Alpa in this process alone; the meshes of a test end with it."""
    alpa.init(cluster="local")
    yield
    alpa.shutdown()
    gc.collect()


def mlp(layers: int) -> Any:
    """State, batch and step of an MLP in two pipeline layers; a micro-batch is as large as a hidden layer."""
    return get_mlp_train_state_and_step(
        batch_size=64, hidden_size=16, num_layers=layers, add_manual_pipeline_marker=True
    )


def bert(layers: int) -> Any:
    """State, batch and step of BERT layers, each a pipeline layer."""
    return get_bert_layer_train_state_and_step(
        batch_size=16,
        seq_len=32,
        num_layers=layers,
        hidden_size=64,
        num_heads=4,
        clip_by_global_norm=False,
        use_dynamic_scale=False,
        add_manual_pipeline_marker=True,
    )


@pytest.mark.parametrize(("model", "layers"), [(mlp, 4), (mlp, 2), (bert, 2)], ids=["mlp", "shallow mlp", "bert"])
def test_stages_that_share_their_state_sum_gradients_in_parts_and_gather_what_they_update(
    model: Any, layers: int
) -> None:
    state, batch, step = model(layers)
    method = PipeshardParallel(
        num_micro_batches=MICRO_BATCHES,
        default_auto_sharding_option=AutoShardingOption(force_data_parallel=True, prefer_reduce_scatter=True),
        layer_option=ManualLayerOption(),
        stage_option=UniformStageOption(num_stages=2),
    )
    programs = alpa.parallelize(step, method=method).get_executable(state, batch).get_hlo_text()
    found = [count_communication_primitives(text, ignore_scalar_all_reduce=True) for text in programs]
    assert found == [NONE, NONE, SUM, SUM, GATHER, GATHER]


def profile(given: dict[str, Any], first: int, last: int) -> StageProfileResult:
    """What Alpa's profiling says of a stage of the layers from `first` to `last`, on one device of this process."""
    layers, apply_layers = given["layers"], given["jax_apply_layers"]
    count = len(layers) // 2
    forward, backward = range(first, last + 1), range(2 * count - last - 1, 2 * count - first)
    stage = generate_stage_info(
        layers,
        [forward, backward],
        given["accumulator_mapping"],
        given["acc_grad_invars"],
        given["acc_grad_outvars"],
        "stage",
        [apply_layers[layer] for layer in forward if apply_layers[layer] is not None],
        given["apply_grad_global_info"],
    )
    mesh = alpa.LocalPhysicalDeviceMesh(jax.local_devices()[:1])
    logical_mesh = mesh.get_logical_mesh()
    option = AutoShardingOption(prefer_reduce_scatter=True)
    _, compiled = CompileWorker().compile_stage_for_profiling(
        0, stage.compile_config, logical_mesh, option, given["num_micro_batches"]
    )
    initial: Any = compute_apply_grad_invar_size(
        compiled.apply_grad_input_sharding_protos, stage.apply_grad_config, logical_mesh.shape
    )
    result = StageProfileResult(stage.n_modules, *initial)
    worker: Any = SimpleNamespace(mesh=mesh)
    for index, (module, config) in enumerate(
        zip(compiled.acc_grad_module_compile_outputs, stage.module_profile_configs, strict=True)
    ):
        _, *raw = ProfileWorker._profile_impl(worker, index, module, compiled.stage_plan, config)
        result.add_module_profile_result(index, generate_module_profile_result(raw, config, module, logical_mesh.shape))
    return result


@pytest.mark.parametrize(("model", "layers"), [(mlp, 2), (bert, 2)], ids=["mlp", "bert"])
def test_the_memory_of_layers_profiled_one_by_one_is_that_of_their_composition(model: Any, layers: int) -> None:
    state, batch, step = model(layers)
    given = layers_of(step, state, batch, num_micro_batches=2, layer_option=ManualLayerOption())
    _, _, *together, _ = get_merged_stages_memory_stats([profile(given, 0, layers - 1)])
    _, _, *apart, _ = get_merged_stages_memory_stats([profile(given, layer, layer) for layer in range(layers)])
    assert together == apart
    initial, intermediate = together
    assert min(initial, intermediate) > 0
