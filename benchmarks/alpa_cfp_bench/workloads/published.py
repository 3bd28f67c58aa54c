"""The models of Alpa's benchmark suites and of LLaMA at their published sizes: numbers only, no jax.

Takes nothing; gives `SUITES`, by suite and then by case. Invariant: what a source says is kept as it says it; what this
project adds to it (meshes of LLaMA, how many samples one planned step has) is named as such.

Sources: Alpa 0.2.3, benchmark/alpa/: suite_manual_gpt.py (gpt_specs) and suite_auto_gpt.py (perf_test_suite: batch,
micro-batches, devices); suite_manual_moe.py (moe_specs) and suite_auto_moe.py; suite_wresnet.py (wresnet_specs and
perf_test_auto_suite). LLaMA: arXiv 2302.13971, table 2; its vocabulary, sequence and the widths of its MLPs are those
of the released models (32000 tokens, 2048, two thirds of 4 x hidden rounded up to a multiple of 256).
"""

from dataclasses import dataclass
from math import prod

DEVICES_A_NODE = 8


@dataclass(frozen=True, slots=True)
class Case:
    """A model and how it is trained; a field without meaning for the model is 0.

    Attributes:
        suite: "gpt", "moe", "wide_resnet" or "llama".
        name: What its source calls it: its parameters, about.
        batch: Samples of a whole step.
        micro_batches: The parts that the step is cut into, one after the other.
        mesh: Sizes of the mesh's axes.
        layers: Layers; of a Wide-ResNet those that its name counts.
        hidden, heads, sequence, vocabulary: Of a language model.
        intermediate: Hidden width of an MLP.
        experts, expert_group: Experts in every other layer, and the tokens that compete for them, at most.
        image, channels, width, classes, stages: Of a Wide-ResNet: pixels of a side, channels of the first stage, how
            much wider than those its inner convolutions are, classes, residual blocks by stage.
    """

    suite: str
    name: str
    batch: int
    micro_batches: int
    mesh: tuple[int, int]
    layers: int
    hidden: int = 0
    heads: int = 0
    sequence: int = 0
    vocabulary: int = 0
    intermediate: int = 0
    experts: int = 0
    expert_group: int = 0
    image: int = 0
    channels: int = 0
    width: int = 0
    classes: int = 0
    stages: tuple[int, ...] = ()

    @property
    def devices(self) -> int:
        """The devices of the mesh."""
        return prod(self.mesh)

    @property
    def samples(self) -> int:
        """Samples of the step that is planned: a micro-batch, but some for each device.

        A plan without pipeline has nothing to fill with micro-batches that are smaller than the mesh, so a micro-batch
        is made larger to the next multiple of the devices.
        """
        return -(-self.batch // self.micro_batches // self.devices) * self.devices


def mesh_of(devices: int) -> tuple[int, int]:
    """Nodes by devices of a node, as in Alpa's measurements: nodes have 8 devices (p3.16xlarge)."""
    return max(1, devices // DEVICES_A_NODE), min(devices, DEVICES_A_NODE)


def _language(
    suite: str,
    name: str,
    sizes: tuple[int, int, int, int, int],
    training: tuple[int, int, int],
    intermediate: int,
    experts: tuple[int, int] = (0, 0),
) -> Case:
    """A language model of (sequence, hidden, layers, heads, vocabulary), trained with (batch, parts, devices)."""
    sequence, hidden, layers, heads, vocabulary = sizes
    batch, micro_batches, devices = training
    return Case(
        suite, name, batch, micro_batches, mesh_of(devices), layers, hidden, heads, sequence, vocabulary, intermediate,
        *experts,
    )  # fmt: skip


def _gpt(name: str, hidden: int, layers: int, heads: int, micro_batches: int, devices: int) -> Case:
    return _language(
        "gpt", name, (1024, hidden, layers, heads, 51200), (1024, micro_batches, devices), intermediate=4 * hidden
    )


def _moe(name: str, hidden: int, layers: int, experts: int, micro_batches: int, devices: int) -> Case:
    # Alpa's benchmark_one_case_moe.py: the MLPs are 8 times as wide as the model.
    sizes = (1024, hidden, layers, 16, 32000)
    return _language("moe", name, sizes, (1024, micro_batches, devices), 8 * hidden, (experts, 2048))


def _wide_resnet(name: str, shape: tuple[int, int, int], batch: int, micro_batches: int, devices: int) -> Case:
    layers, channels, width = shape
    # As in alpa/model/wide_resnet.py, of both depths that the suite has; classes: benchmark_one_case_wresnet.py.
    stages = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}[layers]
    return Case(
        "wide_resnet", name, batch, micro_batches, mesh_of(devices), layers,
        image=224, channels=channels, width=width, classes=1024, stages=stages,
    )  # fmt: skip


def _llama(name: str, hidden: int, layers: int, heads: int, intermediate: int, devices: int) -> Case:
    # The paper trains with 4M tokens a step on 2048 devices; the meshes here are ours, and a sample is a device's.
    sizes = (2048, hidden, layers, heads, 32000)
    return _language("llama", name, sizes, (2048, 2048 // devices, devices), intermediate)


_CASES = (
    _gpt("350M", 1024, 24, 16, micro_batches=512, devices=1),
    _gpt("760M", 1536, 24, 16, micro_batches=128, devices=2),
    _gpt("1.3B", 2048, 24, 32, micro_batches=128, devices=4),
    _gpt("2.6B", 2560, 32, 32, micro_batches=128, devices=8),
    _gpt("6.7B", 4096, 32, 32, micro_batches=64, devices=16),
    _gpt("15B", 5120, 48, 40, micro_batches=128, devices=32),
    _gpt("39B", 8192, 48, 64, micro_batches=1024, devices=64),
    _moe("380M", 768, 8, 8, micro_batches=512, devices=1),
    _moe("690M", 768, 8, 16, micro_batches=32, devices=2),
    _moe("1.3B", 768, 16, 16, micro_batches=32, devices=4),
    _moe("2.4B", 1024, 16, 16, micro_batches=32, devices=8),
    _moe("10B", 1536, 16, 32, micro_batches=16, devices=16),
    _moe("27B", 2048, 16, 48, micro_batches=128, devices=32),
    _moe("70B", 2048, 32, 64, micro_batches=64, devices=64),
    _wide_resnet("250M", (50, 160, 2), batch=1536, micro_batches=24, devices=1),
    _wide_resnet("500M", (50, 224, 2), batch=1536, micro_batches=24, devices=2),
    _wide_resnet("1B", (50, 320, 2), batch=1536, micro_batches=24, devices=4),
    _wide_resnet("2B", (50, 448, 2), batch=1536, micro_batches=24, devices=8),
    _wide_resnet("4B", (50, 640, 2), batch=1536, micro_batches=32, devices=16),
    _wide_resnet("6.8B", (50, 320, 16), batch=1536, micro_batches=32, devices=32),
    _wide_resnet("13B", (101, 320, 16), batch=1520, micro_batches=38, devices=64),
    _llama("7B", 4096, 32, 32, intermediate=11008, devices=8),
    _llama("13B", 5120, 40, 40, intermediate=13824, devices=16),
    _llama("33B", 6656, 60, 52, intermediate=17920, devices=32),
    _llama("65B", 8192, 80, 64, intermediate=22016, devices=64),
)
SUITES: dict[str, dict[str, Case]] = {
    suite: {case.name: case for case in _CASES if case.suite == suite}
    for suite in dict.fromkeys(c.suite for c in _CASES)
}
