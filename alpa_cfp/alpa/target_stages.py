"""The stages of a pipeline for devices that are not here: what candidates cost on parts of a target, and the choice.

Takes a training step written for alpa, a target and shapes of arguments; gives the composed costs of Alpa's candidate
stages, and the stages that Alpa's dynamic programme chooses by them. Alpa cuts the step into layers and enumerates
candidates as ever; each part of the target (1x1, 1x2, ... one host, several hosts) is a target of its own, for which
the segments of stages are compiled and modelled. Invariants: nothing runs, no whole stage is compiled and no mesh
is launched.

Tested with alpa 0.2.3, of which it touches `VirtualPhysicalMesh`.
"""

import contextlib
import dataclasses
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import alpa
from alpa.device_mesh import VirtualPhysicalMesh

from alpa_cfp.alpa.method import CFPPipeshardParallel
from alpa_cfp.alpa.option import CFPOption
from alpa_cfp.alpa.stage_table import StageCost, watched
from alpa_cfp.errors import NoDevicesError, OptionError
from alpa_cfp.targets.errors import TargetError
from alpa_cfp.targets.target import Target
from alpa_on_jax.in_process.place import host_here


@dataclass(frozen=True, slots=True)
class TargetStages:
    """The stages of a pipeline on a target.

    Attributes:
        candidates: Each run of layers on each submesh on which it can be a stage, under its best logical mesh.
        stages: Those that Alpa chose, in the order of layers.
        num_micro_batches: The micro-batches of a step.
    """

    candidates: tuple[StageCost, ...]
    stages: tuple[StageCost, ...]
    num_micro_batches: int

    @property
    def latency_s(self) -> float:
        """Seconds of a step by Alpa's dynamic programme: sends between stages and the update are not in it."""
        costs = [stage.cost_s for stage in self.stages]
        return sum(costs) + (self.num_micro_batches - 1) * max(costs)


def plan_stages(
    step: Callable[..., Any],
    on: Target,
    *args: Any,
    num_micro_batches: int,
    layer_option: Any,
    stage_option: Any = None,
    option: CFPOption | None = None,
    donate_argnums: Sequence[int] = (0,),
    batch_argnums: Sequence[int] = (1,),
) -> TargetStages:
    """Chooses the stages of a pipeline for GPUs that are not here, by the composed costs of all candidates.

    As always where Alpa chooses stages, it writes a file with their costs into the current folder.

    Args:
        step: A training step for `alpa.parallelize`, with gradients by `alpa.grad` or `alpa.value_and_grad`.
        on: The GPUs, a power of two of them on each host.
        args: The arguments; shapes (`jax.ShapeDtypeStruct`) are enough.
        num_micro_batches: The number of micro-batches of a step.
        layer_option: How the model is cut into layers, as alpa takes it: `alpa.AutoLayerOption(layer_num=8)`.
        stage_option: An `alpa.AutoStageOption`; None for one as it is by default.
        option: How CFP plans, with `stage_costs="compose"`; None to compile and model the segments of stages.
        donate_argnums: The arguments whose memory may be used again.
        batch_argnums: The arguments that are cut into micro-batches.

    Raises:
        TargetError: the target is a slice of TPUs, of which there are no parts.
        TargetCompilerError: the compiler is not installed.
        NoDevicesError: the option measures.
        OptionError: the option does not compose costs, or the stage option is another one.
        NoStagesError, StageOptionError: as `alpa.AutoStageOption` says.
    """
    option = CFPOption(costs="compile", stage_costs="compose") if option is None else option
    stage_option = alpa.AutoStageOption() if stage_option is None else stage_option
    _check(on, option, stage_option)
    option = dataclasses.replace(option, plans=[])
    method = CFPPipeshardParallel(_Part.of(on), num_micro_batches, option, "1f1b", layer_option, stage_option)
    # Alpa takes what is no array, shapes for one, as static unless it is told.
    parallel: Any = alpa.parallelize(
        step, static_argnums=(), donate_argnums=donate_argnums, batch_argnums=batch_argnums, method=method
    )

    def end() -> None:
        raise _StagesChosenError

    with watched(end) as table, contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(_StagesChosenError):
        parallel.get_executable(*args)
    return TargetStages(table.candidates(), table.stages(), num_micro_batches)


def _check(on: Target, option: CFPOption, stage_option: Any) -> None:
    if on.torus is not None:
        raise TargetError.no_parts(on.name)
    if option.costs == "measure":
        raise NoDevicesError.of_target(on.name)
    if option.stage_costs != "compose":
        raise OptionError(
            "CFPOption", "stage_costs", option.stage_costs, "on a target it is 'compose': nothing is timed"
        )
    if not isinstance(stage_option, alpa.AutoStageOption):
        raise OptionError(
            "plan_stages", "stage_option", stage_option, "it is an alpa.AutoStageOption, which chooses stages"
        )


class _StagesChosenError(Exception):
    """Ends alpa's compiling once the stages are chosen: it would go on to compile them, and to launch meshes."""


class _Part(VirtualPhysicalMesh):
    """A part of a target as alpa's virtual mesh: parts of it are targets, too.

    Attributes:
        target: So many hosts with so many devices each.
    """

    def __init__(self, target: Target, *mesh: Any) -> None:
        super().__init__(*mesh)
        self.target = target

    @classmethod
    def of(cls, target: Target) -> "_Part":
        """The whole target."""
        hosts = [host_here() for _ in range(target.hosts)]
        return cls(target, list(range(target.hosts)), hosts, target.devices_per_host)

    def slice_1d(self, dim: int, indices: Any) -> "_Part":
        return self._part(super().slice_1d(dim, indices))

    def slice_2d(self, host_indices: Any, device_indices: Any) -> "_Part":
        return self._part(super().slice_2d(host_indices, device_indices))

    def _part(self, mesh: Any) -> "_Part":
        sizes = f"{mesh.num_hosts}x{mesh.num_devices_per_host}"
        own = (mesh.host_ids, mesh.host_info, mesh.num_devices_per_host, self, mesh.devices)
        return _Part(Target.of(self.target.chip, sizes), *own)
