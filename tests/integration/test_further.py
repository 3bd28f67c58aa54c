"""What a race runs for a further micro-batch is, op by op, what alpa then runs for it."""

from dataclasses import dataclass
from typing import Any

import pytest
from jaxlib.mlir import ir

from alpa_cfp.further import further_programs
from alpa_on_jax import xla_extension
from alpa_on_jax.xla_extension import mlir
from alpa_on_jax.xla_extension.hlo_module import HloModule
from alpa_on_jax.xla_extension.partition import PartitionedProgram, partition_to_run
from alpa_on_jax.xla_extension.planner import PlanRequest
from integration.pipelines import hold_steps, pipeline
from integration.planned import DrawnPlan, planned

pytestmark = pytest.mark.slow


def text_of(program: PartitionedProgram) -> str:
    with mlir.context():
        module = mlir.parse(program.bytecode)
        module.operation.attributes["sym_name"] = ir.StringAttr.get("compared")
        return mlir.to_text(module)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("stages", [1, 2])
def test_what_is_raced_for_a_further_micro_batch_is_what_alpa_runs(
    monkeypatch: pytest.MonkeyPatch, stages: int, seed: int
) -> None:
    raced: list[HloModule] = []
    ran: list[str] = []

    @dataclass
    class Watched(DrawnPlan):
        def annotate_module(self, module: HloModule, request: PlanRequest) -> None:
            super().annotate_module(module, request)
            raced.extend(further_programs(module))

    def partitioned(*arguments: Any) -> PartitionedProgram:
        program = partition_to_run(*arguments)
        ran.append(text_of(program))
        return program

    monkeypatch.setattr(xla_extension, "partition_to_run", partitioned)
    option = Watched(seed=seed)
    if stages == 1:
        planned("mlp", "2x2", 2, option)
    else:
        hold_steps("mlp", pipeline(stages, default_auto_sharding_option=option))
    # A stage has a forward and a backward pass; the last one of the MLP has both in one.
    assert len(raced) >= stages
    for program in raced:
        assert program.partitioned is not None
        assert text_of(program.partitioned) in ran, program.name
