"""Published times of training steps, and the order of pairs of them. No jax.

Takes `step_numbers.toml`; gives its rows as `Measured`, what was left out with its reason, and the pairs of plans that
are compared. Invariants: two rows of a pair are of one model, on one kind of devices, with one batch (or one number of
micro-batches), and differ in their sizes of tensor, data or pipeline parallelism; times are compared by sample.
"""

import itertools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from alpa_cfp import target
from alpa_cfp.targets.target import Target

NUMBERS = Path(__file__).parent / "step_numbers.toml"
# Pairs whose measured times differ by less have no order.
DIFFERS = 0.1
# Megatron pads the vocabulary to a multiple of this and of the tensor parallelism.
_VOCABULARY_MULTIPLE = 128


@dataclass(frozen=True, slots=True)
class Model:
    """A language model.

    Attributes:
        name: As its source calls it.
        kind: "gpt" (layer norms, biases, GELU, one table for embedding and head) or "llama" (RMS norms, SwiGLU, rotary
            positions, a head of its own).
        layers, hidden, heads, kv_heads, intermediate, sequence, vocabulary: Its sizes.
    """

    name: str
    kind: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    sequence: int
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Training:
    """How a model is trained.

    Attributes:
        element_type: What products are made in: "f32" (without tensor cores), "f16" or "bf16".
        summed_in: What gradients are summed in, over micro-batches and devices.
        remat: Whether each layer is computed again in the backward pass.
        sequence_parallel: Whether activations between products are split along the sequence.
        splits_state: Whether the optimizer's state is split over data parallelism (ZeRO-1).
    """

    element_type: str
    summed_in: str
    remat: bool
    sequence_parallel: bool
    splits_state: bool


@dataclass(frozen=True, slots=True)
class Parallelism:
    """The sizes of a plan; devices are numbered with tensor parallelism innermost and pipeline stages outermost."""

    tensor: int
    data: int
    pipeline: int

    def __str__(self) -> str:
        return f"T{self.tensor} D{self.data} P{self.pipeline}"


@dataclass(frozen=True, slots=True)
class Measured:
    """One published time.

    Attributes:
        source, address: Where it is from.
        step: What rows that are compared have in common: "4 micro-batches", "512 samples".
        model, training, parallelism: The step.
        target: The devices, by name.
        outer: What replaces the fields of the target's links between hosts.
        micro_batch: Samples of a micro-batch on one replica.
        batch: Samples of the step.
        seconds: The time.
    """

    source: str
    address: str
    step: str
    model: Model
    training: Training
    parallelism: Parallelism
    target: str
    outer: tuple[tuple[str, float], ...]
    micro_batch: int
    batch: int
    seconds: float

    @property
    def micro_batches(self) -> int:
        """How many micro-batches a replica computes one after the other."""
        return self.batch // (self.parallelism.data * self.micro_batch)

    @property
    def compared_with(self) -> tuple[str, str, str, str]:
        """Equal for rows whose order is compared."""
        return self.source, self.model.name, self.target, self.step

    @property
    def vocabulary(self) -> int:
        """The rows of the embedding, padded as Megatron does."""
        multiple = _VOCABULARY_MULTIPLE * self.parallelism.tensor
        return -(-self.model.vocabulary // multiple) * multiple

    @property
    def devices(self) -> Target:
        """The target, with the links between hosts that the source has."""
        found = target(self.target)
        if not self.outer or found.chip.outer is None:
            return found
        values: dict[str, Any] = dict(self.outer)
        return replace(found, chip=replace(found.chip, outer=replace(found.chip.outer, **values)))

    def problem(self) -> str:
        """Why its step cannot be made; empty if it can."""
        sizes, model = self.parallelism, self.model
        if sizes.tensor * sizes.data * sizes.pipeline != target(self.target).num_devices:
            return f"{sizes} are not the devices of {self.target}"
        if self.batch % (sizes.data * self.micro_batch):
            return f"{self.batch} samples are no whole number of micro-batches of {self.micro_batch}"
        if model.layers % sizes.pipeline:
            return f"{model.layers} layers are no equal stages"
        if model.kv_heads % sizes.tensor:
            return f"{model.kv_heads} heads are not split by {sizes.tensor}"
        return ""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows of a source that are not in the file: what they are, how many, and why."""

    source: str
    address: str
    what: str
    rows: int
    reason: str


@dataclass(frozen=True, slots=True)
class Pair:
    """Two plans, by their measured and modelled seconds a sample.

    Attributes:
        slower, faster: What they are called, by the measurement.
        measured: The slower one's time by the faster one's.
        modelled: The same of the modelled times; above 1 the order is the measured one.
    """

    slower: str
    faster: str
    measured: float
    modelled: float

    @property
    def agrees(self) -> bool:
        """Whether the modelled order is the measured one."""
        return self.modelled > 1.0


@dataclass(frozen=True, slots=True)
class Compared:
    """A plan for `pairs`: its sizes, its name, and its measured and modelled seconds a sample."""

    parallelism: Parallelism
    name: str
    measured_s: float
    modelled_s: float

    @classmethod
    def of(cls, row: Measured, modelled_s: float) -> Self:
        """The plan of a row whose step is modelled with `modelled_s`."""
        name = f"{row.parallelism}, micro-batch {row.micro_batch}"
        return cls(row.parallelism, name, row.seconds / row.batch, modelled_s / row.batch)


def measured(path: Path = NUMBERS) -> list[Measured]:
    """The rows of the file, in its order."""
    content = tomllib.loads(path.read_text())
    models = {name: Model(name, **fields) for name, fields in content["models"].items()}
    return [row for table in content["tables"] for row in _of_table(table, models[table["model"]])]


def left_out(path: Path = NUMBERS) -> list[LeftOut]:
    """What the sources have beside the rows of the file."""
    return [LeftOut(**fields) for fields in tomllib.loads(path.read_text())["left_out"]]


def fastest(rows: Sequence[Measured]) -> list[Measured]:
    """Of the rows of one plan for one step that with the micro-batch that was measured to be the fastest."""
    found: dict[tuple[object, ...], Measured] = {}
    for row in rows:
        key = (row.compared_with, row.parallelism)
        if key not in found or row.seconds < found[key].seconds:
            found[key] = row
    return list(found.values())


def pairs(plans: Sequence[Compared], differs: float = DIFFERS) -> list[Pair]:
    """The pairs of plans of unlike sizes whose measured times differ by more than a share of the shorter one.

    Args:
        plans: Rows that may be compared.
        differs: The share.
    """
    found = list[Pair]()
    for one, other in itertools.combinations(plans, 2):
        if one.parallelism == other.parallelism:
            continue
        slower, faster = (one, other) if one.measured_s > other.measured_s else (other, one)
        if slower.measured_s > (1 + differs) * faster.measured_s:
            ratio = slower.modelled_s / faster.modelled_s
            found.append(Pair(slower.name, faster.name, slower.measured_s / faster.measured_s, ratio))
    return found


def agreement(found: Sequence[Pair]) -> float | None:
    """The share of pairs whose modelled order is the measured one; None of no pairs."""
    return sum(pair.agrees for pair in found) / len(found) if found else None


def _of_table(table: Mapping[str, Any], model: Model) -> Iterator[Measured]:
    training = Training(**{name: table[name] for name in Training.__dataclass_fields__})
    outer = tuple(table.get("outer", {}).items())
    for tensor, data, pipeline, micro_batch, batch, milliseconds in table["rows"]:
        yield Measured(
            table["source"], table["address"], table["step"], model, training, Parallelism(tensor, data, pipeline),
            table["target"], outer, micro_batch, batch, milliseconds / 1e3,
        )  # fmt: skip
