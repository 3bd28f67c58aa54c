"""What a race runs for a further micro-batch is, op by op, what alpa then runs for it."""

from dataclasses import dataclass
from typing import Any

import pytest
from jaxlib.mlir import ir

from alpa_cfp.apply.micro_batch_programs import micro_batch_programs
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import PartitionedProgram, partition_to_run
from alpa_on_jax import xla_extension
from alpa_on_jax.xla_extension.planner import PlanRequest
from integration.pipelines import hold_steps, pipeline
from integration.planned import DrawnPlan, planned

pytestmark = pytest.mark.slow


def text_of(program: PartitionedProgram) -> str:
    with mlir.context():
        module = mlir.parse(program.bytecode)
        module.operation.attributes["sym_name"] = ir.StringAttr.get("compared")
        return mlir.to_text(module)


seeds = pytest.mark.parametrize("seed", range(2))


class Watch:
    """What would race for a further micro-batch of what is planned, and what alpa runs.

    Attributes:
        option: Plans at random, and notes what would race.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        raced: list[HloModule] = []
        ran: list[str] = []

        @dataclass
        class Watched(DrawnPlan):
            def annotate_module(self, module: HloModule, request: PlanRequest) -> None:
                program = AnalysedProgram(module)
                super().annotate_module(module, request)
                raced.extend(micro_batch_programs(module, program))

        def partitioned(*arguments: Any) -> PartitionedProgram:
            program = partition_to_run(*arguments)
            ran.append(text_of(program))
            return program

        monkeypatch.setattr(xla_extension, "partition_to_run", partitioned)
        self.option, self._raced, self._ran = Watched(seed=seed), raced, ran

    def hold(self, count: int) -> None:
        """So many programs would race, and alpa runs each of them."""
        assert len(self._raced) == count
        for module in self._raced:
            assert module.partitioned is not None
            assert text_of(module.partitioned) in self._ran, module.name


@seeds
def test_what_is_raced_for_a_further_micro_batch_is_what_alpa_runs(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    watch = Watch(monkeypatch, seed)
    planned("mlp", "2x2", 2, watch.option)
    watch.hold(1)


@seeds
@pytest.mark.usefixtures("local_pipelines")
def test_what_is_raced_for_a_further_micro_batch_of_stages_is_what_alpa_runs(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    watch = Watch(monkeypatch, seed)
    hold_steps("mlp", pipeline(2, default_auto_sharding_option=watch.option))
    watch.hold(4)  # each stage has a forward and a backward pass
