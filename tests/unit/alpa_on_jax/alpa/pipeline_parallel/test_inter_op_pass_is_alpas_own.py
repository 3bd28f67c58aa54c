"""The inter-operator pass is Alpa's own: no function of it is replaced, and it does not know who shards the stages.

That the files are those of PyPI is in `tests/unit/test_packaging.py`.
"""

import ast
import functools
import gc
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import alpa
import jax
import numpy as np
import pytest
from alpa import AutoLayerOption, AutoShardingOption, AutoStageOption
from alpa.device_mesh import VirtualPhysicalMesh
from alpa.pipeline_parallel import layer_construction, stage_construction
from alpa.pipeline_parallel.computation import JaxPipelineComputation
from alpa.shard_parallel.auto_sharding import LogicalDeviceMesh
from alpa.testing import get_mlp_train_state_and_step

from alpa_cfp import CFPOption
from alpa_on_jax.replacing import replacements
from oracles.pipeline_layers import layers_of

pytestmark = pytest.mark.slow

WRAPPED = {stage_construction: set(), layer_construction: {"add_pipeline_marks_for_sliced_eqns"}}
OPTIONS = {"ilp": AutoShardingOption(), "cfp": CFPOption(costs="estimate", progress=False)}
LAYERS = 4


@pytest.fixture(scope="module", autouse=True)
def all_of_the_inter_op_pass() -> None:
    """Whatever any module of it replaces is replaced."""
    package = importlib.import_module("alpa.pipeline_parallel")
    for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(info.name)


def defined_functions(file: Path) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions at the top of a module and the methods of its classes, by their names with dots."""
    for item in ast.parse(file.read_text()).body:
        if isinstance(item, ast.FunctionDef):
            yield item.name, item
        elif isinstance(item, ast.ClassDef):
            yield from (
                (f"{item.name}.{inner.name}", inner) for inner in item.body if isinstance(inner, ast.FunctionDef)
            )


def codes_of(function: Any) -> set[CodeType]:
    """The code of a function, and of those that it wraps, as alpa's decorator for numba does."""
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    return {function.__code__}.union(*(codes_of(inner) for inner in held if isinstance(inner, FunctionType)))


def replaced_functions(module: ModuleType) -> set[str]:
    """What of alpa's file is not what the module has under that name."""
    file = Path(str(module.__file__))
    different = set()
    for name, definition in defined_functions(file):
        first_line = min([definition.lineno, *(decorator.lineno for decorator in definition.decorator_list)])
        found = codes_of(functools.reduce(getattr, name.split("."), module))
        places = {(code.co_filename, code.co_name, code.co_firstlineno) for code in found}
        own = [place for place in places if place == (str(file), definition.name, first_line)]
        outside = [place for place in places if not Path(place[0]).is_relative_to(Path(str(alpa.__file__)).parent)]
        if not own or outside:
            different.add(name)
    return different


@pytest.mark.parametrize("module", WRAPPED, ids=lambda module: module.__name__.rpartition(".")[2])
def test_every_function_is_the_one_in_alpas_file(module: ModuleType) -> None:
    assert len(list(defined_functions(Path(str(module.__file__))))) > 10
    assert replaced_functions(module) == WRAPPED[module]
    assert set(replacements().get(module.__name__, ())) == WRAPPED[module]


def test_a_function_that_is_replaced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    original = stage_construction.get_submesh_choices
    monkeypatch.setattr(stage_construction, "get_submesh_choices", lambda *args: original(*args))
    assert replaced_functions(stage_construction) == {"get_submesh_choices"}


def test_the_wrapped_helper_calls_alpas_own() -> None:
    codes = codes_of(layer_construction.add_pipeline_marks_for_sliced_eqns)
    assert str(layer_construction.__file__) in {code.co_filename for code in codes}


def described(value: Any) -> Any:
    """A value that equals that of another run, if the arguments were the same; who shards does not count."""
    if isinstance(value, AutoShardingOption):
        return "option"
    if isinstance(value, LogicalDeviceMesh):
        return value.shape, value.flatten_ids
    if isinstance(value, VirtualPhysicalMesh):
        return [int(host) for host in value.host_ids], [list(map(int, row)) for row in value.devices]
    if isinstance(value, JaxPipelineComputation):
        return value.name, str(value.closed_jaxpr())
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return [(described(key), described(each)) for key, each in value.items()]
    if isinstance(value, list | tuple | set):
        return [described(each) for each in value]
    return value if isinstance(value, int | float | bool | str | None) else str(value)


@functools.cache
def layers(schedule: str) -> dict[str, Any]:
    """The layers of an MLP's step, or of its forward function for the schedule "inference", on 8 devices."""
    state, batch, step = get_mlp_train_state_and_step(batch_size=64, hidden_size=8, num_layers=8)

    def predict(state: Any, batch: Any) -> jax.Array:
        return state.apply_fn(state.params, batch["x"])

    alpa.init(cluster="local")
    try:
        return layers_of(
            predict if schedule == "inference" else step,
            state,
            batch,
            donated=() if schedule == "inference" else (0,),
            num_micro_batches=2,
            layer_option=AutoLayerOption(layer_num=LAYERS),
            pipeline_schedule=schedule,
        )
    finally:
        alpa.shutdown()
        gc.collect()


def table_of_costs(seed: int) -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """In the place of `get_compute_cost`: random costs of each stage on each submesh, and memory for all."""

    def get_compute_cost(virtual_mesh: Any, submeshes: Any, configs: Any, *rest: Any) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        size = (LAYERS, LAYERS, len(submeshes), len(configs[0]))
        first, last, submesh, _ = np.indices(size)
        costs = (1 + last - first) / (1 + submesh) * rng.integers(10, 20, size)
        return costs, np.full(size, LAYERS)

    return get_compute_cost


@dataclass
class Run:
    """What alpa's functions were called with, in order, and what came of it."""

    calls: list[Any]
    stages: Any
    meshes: list[tuple[int, int]]


def choose_stages(option: AutoShardingOption, schedule: str, seed: int) -> Run:
    """Let alpa choose the stages by a table of costs."""
    calls: list[Any] = []

    def recorded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            calls.append((name, described(args), described(named)))
            return function(*args, **named)

        return call

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage_construction, "get_compute_cost", table_of_costs(seed))
        for name, value in vars(stage_construction).items():
            if isinstance(value, FunctionType) and name != "maybe_numba_jit":
                patch.setattr(stage_construction, name, recorded(name, value))
        given = {**layers(schedule), "default_as_option": option, "stage_option": AutoStageOption()}
        stages, placement, meshes, manual = stage_construction.cluster_layers_and_slice_mesh(**given)
    return Run(calls, described([stages, placement, meshes, vars(manual)]), [mesh.shape for mesh in meshes])


CASES = [("1f1b", 0), ("1f1b", 1), ("inference", 0)]


@pytest.mark.parametrize(("schedule", "seed"), CASES)
def test_with_the_same_costs_the_stages_do_not_depend_on_who_shards_them(schedule: str, seed: int) -> None:
    ilp, cfp = (choose_stages(option, schedule, seed) for option in OPTIONS.values())
    assert cfp.calls == ilp.calls
    assert cfp.stages == ilp.stages


@pytest.mark.parametrize(("schedule", "seed"), CASES)
def test_alpas_programme_chooses_the_stages(schedule: str, seed: int) -> None:
    run = choose_stages(OPTIONS["cfp"], schedule, seed)
    names = [name for name, _, _ in run.calls]
    programme = "inference_dp" if schedule == "inference" else "training_dp"
    order = ["cluster_layers_and_slice_mesh", "get_submesh_choices", "get_compute_cost", programme]
    assert [name for name in names if name in order] == order
    assert sum(hosts * devices for hosts, devices in run.meshes) == 8


def test_other_costs_give_other_stages() -> None:
    chosen = {str(choose_stages(OPTIONS["ilp"], "1f1b", seed).meshes) for seed in range(4)}
    assert len(chosen) > 1
