"""The modelled seconds of a whole training step that is planned by hand, as a published row says.

Takes a row of `step_numbers.py`; gives its `ModelledStep`. One micro-batch of a stage is compiled for the devices of
one tensor-parallel group (`step_programs.py`) and walked by the model of targets (`modelled_program.timeline_of`);
replicas of data parallelism do the same beside each other. A step is

    (micro-batches + stages - 1) x (slowest stage's micro-batch + its sends) + sum of gradients + update

which is GPipe's and 1F1B's formula for stages of equal length (Narayanan et al., "Efficient Large-Scale Language Model
Training on GPU Clusters", section 2.2). The slowest stage is the last one: the head's products with the vocabulary take
far longer than the embedding's look-up, and stages between have neither. `by_stages_s` is the same with each stage as
long as it is: the sum of all stages + (micro-batches - 1) x the slowest one (Zheng et al., "Alpa", equation 2), the
others being their layers alone. Sends are the activations to the next stage and their gradients back, each by the
collectives' model, and nothing hides them. The sum of gradients over data parallelism is one collective by that model,
after the last micro-batch (with ZeRO-1 a reduce-scatter, and an all-gather of the weights), as in the published runs,
none of which overlaps it. The update is one compiled program over all numbers of a device. The sum of the gradients of
GPT's one table over both ends of a pipeline is not counted.

A stage is extrapolated on a line from programs of `_FEW` layers, between which only whole layers differ. Invariant:
nothing of the model is fitted to what is compared here.
"""

from dataclasses import dataclass, replace
from functools import cache

from alpa_cfp.targets.interconnect import collective_s
from alpa_cfp.targets.links import interconnect_of
from alpa_cfp.targets.modelled_program import timeline_of
from alpa_cfp.targets.target import Target
from alpa_cfp.targets.topology import compile_for, devices_of
from benchmarks.step_numbers import Measured, Model, Parallelism, Training
from benchmarks.step_programs import Stage, micro_batch_program, update_program, weights_of

_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
_FEW = (2, 4)


@dataclass(frozen=True, slots=True)
class Seconds:
    """The seconds of one micro-batch of a stage: all, computing, communicating, what of that is hidden; compiling."""

    step_s: float
    computing_s: float
    communicating_s: float
    hidden_s: float
    compile_s: float

    def extrapolated(self, deeper: "Seconds", layers: tuple[int, int], wanted: int) -> "Seconds":
        """Those of `wanted` layers, on the line through these of layers[0] and `deeper` ones of layers[1]."""
        share = (wanted - layers[0]) / (layers[1] - layers[0])
        step_s, computing_s, communicating_s, hidden_s = (
            few + share * (more - few) for few, more in zip(self.modelled, deeper.modelled, strict=True)
        )
        return Seconds(step_s, computing_s, communicating_s, hidden_s, self.compile_s + deeper.compile_s)

    @property
    def modelled(self) -> tuple[float, float, float, float]:
        """All but what compiling took."""
        return self.step_s, self.computing_s, self.communicating_s, self.hidden_s


@dataclass(frozen=True, slots=True)
class ModelledStep:
    """A step.

    Attributes:
        step_s: Its seconds.
        by_stages_s: The same where each stage is as long as it is.
        micro_batch: Of the slowest stage.
        sends_s: Of a micro-batch, to the next stage and back.
        sum_s: Of the gradients over data parallelism, and of gathering weights.
        update_s: Of the optimizer.
    """

    step_s: float
    by_stages_s: float
    micro_batch: Seconds
    sends_s: float
    sum_s: float
    update_s: float


def modelled_step(row: Measured) -> ModelledStep:
    """The step of a row.

    Raises:
        jax.errors.JaxRuntimeError: a program cannot be compiled.
        CFPError: the model has no seconds for something.
    """
    sizes, stages = row.parallelism, stages_of(row.model.layers, row.parallelism.pipeline)
    few, more = (_micro_batch(row, replace(stages[-1], layers=layers)) for layers in _FEW)
    slowest = few.extrapolated(more, _FEW, stages[-1].layers)
    layer_s = (more.step_s - few.step_s) / (_FEW[1] - _FEW[0])
    sends_s = 2 * send_s(row)
    numbers = max(_numbers(row, stage) for stage in stages)
    sum_s = gradient_sum_s(row, numbers)
    own = -(-numbers // sizes.data) if row.training.splits_state else numbers
    once_s = sum_s + _update_s(row.devices, own, row.training)
    others_s = (sizes.pipeline - 1) * (layer_s * stages[-1].layers + sends_s)
    return ModelledStep(
        pipeline_s(slowest.step_s, sends_s, row.micro_batches, sizes.pipeline) + once_s,
        pipeline_s(slowest.step_s, sends_s, row.micro_batches, 1) + others_s + once_s,
        slowest,
        sends_s,
        sum_s,
        once_s - sum_s,
    )


def pipeline_s(micro_batch_s: float, sends_s: float, micro_batches: int, stages: int) -> float:
    """Seconds of all micro-batches through a pipeline: (micro-batches + stages - 1) x (slowest stage + sends)."""
    return (micro_batches + stages - 1) * (micro_batch_s + sends_s)


def stages_of(layers: int, stages: int) -> tuple[Stage, ...]:
    """The ends of a pipeline of equal layers; without a pipeline the one stage that is both."""
    each = layers // stages
    if stages == 1:
        return (Stage(each, first=True, last=True),)
    return Stage(each, first=True, last=False), Stage(each, first=False, last=True)


def send_s(row: Measured) -> float:
    """Seconds of the activations of a micro-batch from each stage to the next one; 0 without a pipeline."""
    sizes = row.parallelism
    if sizes.pipeline == 1:
        return 0.0
    own = sizes.tensor * sizes.data
    pairs = tuple((device, device + own) for device in range(own * (sizes.pipeline - 1)))
    numbers = row.micro_batch * row.model.sequence * row.model.hidden
    # Megatron sends each device's part of what all devices of a tensor-parallel group have.
    size_bytes = numbers * _BYTES[row.training.element_type] / sizes.tensor
    return collective_s("collective-permute", size_bytes, pairs, interconnect_of(row.devices))


def gradient_sum_s(row: Measured, numbers: int) -> float:
    """Seconds of adding up the gradients of all replicas, and with ZeRO-1 of gathering the weights.

    Args:
        row: The step.
        numbers: The weights of one device.
    """
    if row.parallelism.data == 1:
        return 0.0
    links, groups = interconnect_of(row.devices), replica_groups(row.parallelism)
    summed_bytes = numbers * _BYTES[row.training.summed_in]
    if not row.training.splits_state:
        return collective_s("all-reduce", summed_bytes, groups, links)
    part_bytes = numbers * _BYTES[row.training.element_type] / row.parallelism.data
    scattered_s = collective_s("reduce-scatter", summed_bytes, groups, links)
    return scattered_s + collective_s("all-gather", part_bytes, groups, links)


def replica_groups(sizes: Parallelism) -> tuple[tuple[int, ...], ...]:
    """The devices that have the same weights, for each part of the weights."""
    own = sizes.tensor * sizes.data
    return tuple(
        tuple(stage * own + replica * sizes.tensor + part for replica in range(sizes.data))
        for stage in range(sizes.pipeline)
        for part in range(sizes.tensor)
    )


def _numbers(row: Measured, stage: Stage) -> int:
    weights = weights_of(row.model, stage, row.vocabulary).values()
    return sum(each.per_device(row.parallelism.tensor) for each in weights)


def _micro_batch(row: Measured, stage: Stage) -> Seconds:
    # The depth of the whole model has no part in a stage's program.
    model = replace(row.model, layers=0)
    return _compiled(model, row.training, stage, row.vocabulary, row.micro_batch, row.parallelism.tensor, row.devices)


@cache
def _compiled(
    model: Model, training: Training, stage: Stage, vocabulary: int, samples: int, tensor: int, wanted: Target
) -> Seconds:
    devices = devices_of(wanted)[:tensor]
    bytecode = micro_batch_program(model, training, stage, vocabulary, samples, devices)
    compiled = compile_for(bytecode, devices, one_program_per_device=False)
    line = timeline_of(compiled, wanted, tensor)
    return Seconds(line.step_s, line.computing_s, line.communicating_s, line.hidden_s, compiled.seconds)


@cache
def _update_s(wanted: Target, numbers: int, training: Training) -> float:
    devices = devices_of(wanted)[:1]
    compiled = compile_for(update_program(numbers, training, devices), devices, one_program_per_device=False)
    return timeline_of(compiled, wanted, 1).step_s
