"""Schedules for alpa's pipelines beside its own: interleaved 1F1B, and one with gradients of parameters apart.

`ExtendedPipeshardParallel` is alpa's method with them. Alpa chooses stages and meshes as ever; then the layers are cut
into more stages, or backward stages are split in two, and alpa shards and runs these in the order of the schedule.
Invariant: alpa's names that are replaced while a pipeline is compiled are its own again afterwards.

Tested with alpa 0.2.3, of which it replaces `cluster_layers_and_slice_mesh` and `PipeDreamFlush` in
`compile_executable`.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, cast

import alpa
from alpa.pipeline_parallel import compile_executable, stage_construction
from alpa.pipeline_parallel.schedules import PipeDreamFlush
from alpa.pipeline_parallel.stage_construction import ManualStageOption
from alpa.util import jaxpr_to_hlo

from alpa_cfp.alpa.split_backward import split_backward
from alpa_cfp.alpa.stage_table import StageTable, watched
from alpa_cfp.errors import OptionError
from alpa_cfp.stages.schedule_choice import Choice, LayerCosts, Run

# What `pipeline_schedule` may be in alpa, and beside that.
_OF_ALPA = ("1f1b", "gpipe", "1f1b_overlap_friendly", "inference")
SCHEDULES = ("interleaved_1f1b", "zero_bubble", "auto")


class ExtendedPipeshardParallel(alpa.PipeshardParallel):
    """Alpa's pipeline parallelism with more schedules.

    Args:
        pipeline_schedule: The order in which micro-batches run: one of alpa's; "interleaved_1f1b" (arXiv 2104.04473,
            section 2.2), by which each mesh has several stages, of layers apart; "zero_bubble" (the ZB-H1 of arXiv
            2401.10241), by which gradients of parameters are computed while a mesh would wait; or "auto" for the one of
            these and "1f1b" by which a step is fastest by the costs of stages: alpa's where it chooses stages by costs,
            else by counted contractions. Each program beyond two that a mesh runs for a micro-batch costs a tenth.
        virtual_stages: With "interleaved_1f1b", the number of stages of each mesh; None for the fastest by the same
            costs.

    The other arguments are those of `alpa.PipeshardParallel`.

    Raises:
        OptionError: there is no such schedule, the number is none, or the schedule has no virtual stages; as the
            function is compiled: it has fewer layers than there are to be stages, or more than one stage a mesh
            before that, or nothing is known of what its layers take.
    """

    def __init__(
        self,
        devices: Any = None,
        num_micro_batches: int = 1,
        default_auto_sharding_option: Any = None,
        pipeline_schedule: str = "1f1b",
        layer_option: Any = None,
        stage_option: Any = None,
        stage_input_shardings: Sequence[Any] | None = None,
        manual_sharding_option: Any = None,
        virtual_stages: int | None = None,
    ) -> None:
        if pipeline_schedule not in (*_OF_ALPA, *SCHEDULES):
            rule = f"it must be one of {', '.join((*_OF_ALPA, *SCHEDULES))}"
            raise OptionError(type(self).__name__, "pipeline_schedule", pipeline_schedule, rule)
        if virtual_stages is not None:
            _check(type(self).__name__, virtual_stages, pipeline_schedule)
        self._extended = pipeline_schedule if pipeline_schedule in SCHEDULES else None
        self._virtual_stages = virtual_stages
        super().__init__(
            devices,
            num_micro_batches,
            default_auto_sharding_option,
            "1f1b" if self._extended else pipeline_schedule,
            layer_option,
            stage_option,
            stage_input_shardings,
            manual_sharding_option,
        )

    def compile_executable(self, *args: Any, **kwargs: Any) -> Any:
        if self._extended is None:
            return super().compile_executable(*args, **kwargs)
        with _scheduled(self._choice):
            return super().compile_executable(*args, **kwargs)

    def _choice(self, costs: LayerCosts, whole: Sequence[Run]) -> Choice:
        """Returns the schedule of a pipeline.

        Args:
            costs: The costs of its layers.
            whole: The layers of each mesh, as alpa chose them.

        Raises:
            OptionError: there are too few layers, or too many stages.
        """
        method = type(self).__name__
        if self._extended != "interleaved_1f1b":
            if len(whole) != costs.meshes:
                rule = (
                    f"each mesh has one stage, and alpa has made {len(whole)} for {costs.meshes}: give the devices of "
                    "each stage, UniformStageOption(num_stages, submesh_physical_shape, submesh_logical_shape)"
                )
                raise OptionError(method, "pipeline_schedule", self._extended, rule)
            return costs.zero_bubble(whole) if self._extended == "zero_bubble" else costs.fastest(whole)
        choice = costs.fastest_interleaved(self._virtual_stages)
        if choice is None:
            asked = self._virtual_stages or 2
            rule = (
                f"{asked} stages on each of {costs.meshes} meshes need {asked * costs.meshes} layers, and the model is "
                f"cut into {costs.layers}: ask for more layers (layer_option), with the devices of each stage in "
                "stage_option, or for fewer virtual stages"
            )
            if costs.layers >= asked * costs.meshes:
                rule = (
                    "alpa's table of costs has none for stages that are so short: it does not look at stages that it "
                    "holds to be too small for their devices (AutoStageOption(stage_imbalance_tolerance=...))"
                )
            raise OptionError(method, "virtual_stages", self._virtual_stages, rule)
        return choice


def _check(method: str, virtual_stages: Any, schedule: str) -> None:
    """Hold that a method can have so many stages on each mesh.

    Raises:
        OptionError: it cannot.
    """
    if not isinstance(virtual_stages, int) or isinstance(virtual_stages, bool) or virtual_stages < 2:
        raise OptionError.not_whole(method, "virtual_stages", virtual_stages, 2)
    if schedule != "interleaved_1f1b":
        rule = f"with the schedule {schedule!r} each mesh has one stage: say pipeline_schedule='interleaved_1f1b'"
        raise OptionError(method, "virtual_stages", virtual_stages, rule)


class _GivenSchedule(PipeDreamFlush):
    """A schedule as one of alpa's."""

    def __init__(self, choice: Choice, **kwargs: Any) -> None:
        self._choice = choice
        super().__init__(**kwargs)

    @property
    def name(self) -> Any:
        return self._choice.name

    def _generate_schedule(self) -> list[list[Any]]:
        rows: list[list[Any]] = [*self._choice.schedule.ticks()]
        updates: list[Any] = [None] * self.num_mesh
        for stage, mesh in self.apply_grad_placement.items():
            updates[mesh] = (self.last_backward_batch_index, stage)
        return [*rows, updates]


@contextlib.contextmanager
def _scheduled(choose: Callable[[LayerCosts, tuple[Run, ...]], Choice]) -> Iterator[None]:
    """Let alpa make pipelines in this context with the schedules that are chosen by costs, and by alpa's stages."""
    module = cast(Any, compile_executable)
    cluster, one_f_one_b = module.cluster_layers_and_slice_mesh, module.PipeDreamFlush
    chosen: list[Choice] = []

    signature = inspect.signature(cluster)

    @functools.wraps(cluster)
    def cluster_layers_and_slice_mesh(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        given = signature.bind(*args, **kwargs)
        layers, accumulators = given.arguments["layers"], given.arguments["accumulator_mapping"]
        # With one micro-batch nothing is added up.
        accumulated = set(accumulators.values() or given.arguments["acc_grad_outvars"])
        with watched() as table:
            made = cluster(*given.args, **given.kwargs)
        _, _, meshes, manual = made
        whole = tuple(map(tuple, manual.forward_stage_layer_ids))
        choice = choose(_costs(layers, meshes, table, accumulated, given.arguments["num_micro_batches"]), whole)
        chosen.append(choice)
        if choice.runs != whole:
            own = (
                manual.submesh_physical_shapes,
                manual.submesh_logical_shapes,
                manual.submesh_autosharding_option_dicts,
            )
            given.arguments["stage_option"] = ManualStageOption([list(run) for run in choice.runs], *own)
            made = cluster(*given.args, **given.kwargs)
        stages, places, meshes, manual = made
        places = [place % len(meshes) for place in places]
        if choice.schedule.parts == 3:
            stages, places = _with_gradients_apart(stages, places, accumulated)
        return stages, places, meshes, manual

    def schedule(**kwargs: Any) -> PipeDreamFlush:
        choice = chosen[-1]
        return one_f_one_b(**kwargs) if choice.name == "1f1b" else _GivenSchedule(choice, **kwargs)

    try:
        module.cluster_layers_and_slice_mesh, module.PipeDreamFlush = cluster_layers_and_slice_mesh, schedule
        yield
    finally:
        module.cluster_layers_and_slice_mesh, module.PipeDreamFlush = cluster, one_f_one_b


def _with_gradients_apart(
    stages: Sequence[Any], places: Sequence[int], accumulated: set[Any]
) -> tuple[list[Any], list[int]]:
    """Stages and their meshes, with backward stages split in two (see `split_backward`)."""
    count = len(stages) // 2
    parts = [split_backward(stage, accumulated) for stage in stages[count:]]
    first, last = ([part[number] for part in parts] for number in (0, 1))
    return [*stages[:count], *first, *last], [*places, *places[count:]]


def _costs(
    layers: Sequence[Any], meshes: Sequence[Any], table: StageTable, accumulated: set[Any], num_micro_batches: int
) -> LayerCosts:
    """Costs of the layers: by alpa's table if it chose stages by one, else by their contractions."""
    count = len(layers) // 2

    @functools.cache
    def forward(number: int) -> float:
        return _flops(layers[number])

    @functools.cache
    def backward(number: int) -> float:
        return _flops(layers[-1 - number])

    @functools.cache
    def first_part(number: int) -> float:
        return _flops(split_backward(layers[-1 - number], accumulated)[0])

    def cotangents(start: int, last: int) -> float:
        whole = sum(map(backward, range(start, last + 1)))
        return sum(map(first_part, range(start, last + 1))) / whole if whole else 1.0

    if table.chosen:
        most_kept = [float(table.successors[place]) + 1 for place in table.chosen]

        def measured(start: int, last: int, mesh: int) -> float:
            return float(table.cost_s[(start, last, *table.chosen[mesh][2:])])

        return LayerCosts(count, num_micro_batches, measured, most_kept, cotangents)
    devices = [mesh.num_devices for mesh in meshes]

    def counted(start: int, last: int, mesh: int) -> float:
        return sum(forward(number) + backward(number) for number in range(start, last + 1)) / devices[mesh]

    return LayerCosts(count, num_micro_batches, counted, [inf] * len(meshes), cotangents)


def _flops(layer: Any) -> float:
    """The operations of a layer's contractions, counted as alpa does to make stages of equal size."""
    count: Callable[[Any], float] = stage_construction.xe.hlo_module_count_flop_dot_conv_only
    return count(jaxpr_to_hlo("layer", layer.closed_jaxpr(), [False] * len(layer.invars)).get_module())
