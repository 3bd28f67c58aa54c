"""Gradients are summed over devices once a step: looked up in the per-device programs, and in what runs."""

from collections.abc import Iterator
from typing import Any

import jax
import pytest

from alpa_cfp.spmd.compile import backend
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.partition import PartitionedProgram, partition
from alpa_cfp_bench.workloads.models import build
from integration.parallel import Case, cases, executable

pytestmark = pytest.mark.slow

accumulating = [case for case in cases() if case.num_micro_batches is not None]
every_accumulating_case = pytest.mark.parametrize("case", accumulating, ids=str)
every_data_parallel_case = pytest.mark.parametrize(
    "case", [case for case in accumulating if case.style == "data_parallel"], ids=str
)

# What may stand between a gradient's sum over devices and its accumulator: the sum could as well be made after it.
_LINEAR = {
    f"stablehlo.{name}"
    for name in ("add", "subtract", "negate", "transpose", "reshape", "convert", "broadcast_in_dim", "slice", "reduce")
}


def _gradients(program: PartitionedProgram) -> Iterator[tuple[int, Any]]:
    """The values that an accumulate step adds to its accumulators, in its per-device program."""
    with mlir.context():
        module = mlir.parse(program.bytecode)
        main = mlir.main_function(module)
        for number, result in enumerate(mlir.terminator(main).operands):
            total = mlir.defining_op(result)
            assert total is not None
            assert total.name == "stablehlo.add", f"result {number} of the accumulate step is no sum"
            yield number, next(operand for operand in total.operands if mlir.defining_op(operand) is not None)


def _reduction_behind(value: Any) -> bool:
    """Whether `value` is, up to linear ops, a sum over devices that serves nothing else."""
    op = mlir.defining_op(value)
    if op is None or len(mlir.users(value)) > 1:
        return (
            False  # a sum that the backward pass needs as well, such as one of activations' gradients, has to be made
        )
    if op.name not in _LINEAR and op.name != "stablehlo.all_reduce":
        return False
    return op.name == "stablehlo.all_reduce" or any(_reduction_behind(operand) for operand in op.operands)


@every_accumulating_case
def test_the_accumulate_step_reduces_no_gradient(case: Case) -> None:
    num_parameters = len(jax.tree.leaves(build(case.model).state.params))
    found = [_reduction_behind(value) for _, value in _gradients(executable(case).accumulate_grad.program)]
    # The loss and the metrics come first; what they are normalised by has to be known in every micro-batch.
    assert found[-num_parameters:] == [False] * num_parameters


@pytest.mark.parametrize("mesh", ["1x8", "2x4", "2x2"])
def test_the_same_step_partitioned_without_moving_its_sums_does_reduce_every_gradient(mesh: str) -> None:
    # What the test above is worth.
    module = executable(Case("mlp", mesh, "data_parallel", 2)).accumulate_grad.module
    num_parameters = len(jax.tree.leaves(build("mlp").state.params))
    found = [_reduction_behind(value) for _, value in _gradients(partition(module))]
    assert found[-num_parameters:] == [True] * num_parameters


@every_data_parallel_case
def test_every_gradient_of_a_data_parallel_step_is_summed_after_the_last_micro_batch(case: Case) -> None:
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(build(case.model).state.params)]
    unreduced = executable(case).accumulate_grad.program.unreduced_outputs[-len(paths) :]
    summed_before = [path for path, axes in zip(paths, unreduced, strict=True) if not axes]
    # The gradient of a batch norm's scale is made of a sum over the batch that the backward pass needs as well.
    scale = "['scale']" if case.model in ("conv", "wide_resnet") else None
    assert [path for path in summed_before if scale is None or not path.endswith(scale)] == []


@every_accumulating_case
def test_programs_run_in_the_order_of_a_step_with_the_sum_once_and_last(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = executable(case)
    accumulate, apply_grad = program.accumulate_grad, program.apply_grad
    names = {
        id(program.allocate_zero_buffers._executable): "zeros",
        id(accumulate._executable): "accumulate",
        id(accumulate._grad_sync): "sum",
        id(apply_grad._executable): "apply",
    }
    ran: list[str] = []
    original = backend.execute

    def record(loaded: Any, *args: Any) -> Any:
        ran.append(names[id(loaded)])
        return original(loaded, *args)

    monkeypatch.setattr(backend, "execute", record)
    model = build(case.model)
    program.launch_on_driver(*jax.tree.leaves((jax.tree.map(lambda array: array.copy(), model.state), model.batch)))
    needs_sum = accumulate._grad_sync is not None
    assert ran == ["zeros", "accumulate", "accumulate", *["sum"] * needs_sum, "apply"]
