"""The configuration of a comparison: the case, the names of the methods, and the number of runs.

Invariant: nothing here imports jax, so that a command line can be read before it is decided how many devices jax has.
"""

from dataclasses import dataclass
from math import prod

from alpa_cfp.errors import HostsMeshError
from alpa_cfp_bench.workloads.sizes import Size, mesh_shape

CFP, ILP, PROPAGATION = "cfp", "alpa-ilp", "propagation"
ILP_GIVEN, ILP_AGAIN, DATA_PARALLEL = "alpa-ilp-given", "alpa-ilp-again", "data-parallel"
FLEXFLOW, FLEXFLOW_OUR_COSTS = "flexflow", "flexflow-our-costs"
TOFU, TOFU_OUR_COSTS, MAXTEXT = "tofu", "tofu-our-costs", "maxtext"
# As the address of a cluster: one of this machine alone, which is started for the run.
LOCAL = "local"
# In the order of the table, each with what it is.
METHODS = {
    CFP: "this project: measures parts of the step on this mesh, and searches for the fastest plan",
    ILP: "Alpa 0.2.3's own planner, an integer programme over a symbolic cost model: the fastest of its plans for "
    "all shapes of a mesh of these devices",
    ILP_GIVEN: "the same on the mesh as it is given, with Alpa's default options",
    DATA_PARALLEL: "each device has all parameters and a part of the batch (alpa.DataParallel)",
    "zero2": "data parallel, with the optimizer's state split over the devices (alpa.Zero2Parallel)",
    "zero3": "data parallel, with parameters split too (alpa.Zero3Parallel)",
    "megatron": "by hand: batch split over the first mesh axis, layers over the second, as Megatron-LM does",
    PROPAGATION: "plain jax.jit: the batch is split over all devices, and XLA decides the rest; no alpa",
    ILP_AGAIN: "alpa-ilp's plan once more, as a method of its own: so far apart are two equal programs (only where it "
    "is named)",
}
# The planners of other papers and a plan by published rules (docs/rivals.md), only where they are named.
RIVALS = {
    FLEXFLOW: "FlexFlow's search (arXiv 1807.05358), a Markov chain over the strategies of blocks, with its own costs: "
    "computing as measured, bytes by bandwidth",
    FLEXFLOW_OUR_COSTS: "the same chain over all of CFP's candidates, with CFP's costs",
    TOFU: "Tofu's search (arXiv 1807.08887), which halves the devices again and again, with its own costs: the bytes "
    "that are communicated",
    TOFU_OUR_COSTS: "the same halvings over all of CFP's candidates, with CFP's estimates of seconds",
    MAXTEXT: "by hand: the published rules of MaxText for LLaMA, FSDP over the first mesh axis, tensors over the "
    "second; plain jax.jit, no alpa",
}
# What can be named, and what it is.
ALL_METHODS = METHODS | RIVALS
# Those without alpa, which run in one process.
BY_JIT = (PROPAGATION, MAXTEXT)
# The same in a few words, for pictures.
METHODS_BRIEFLY = {
    CFP: "planned from measured parts",
    ILP: "planned by Alpa, best mesh shape",
    ILP_GIVEN: "planned by Alpa, mesh as given",
    DATA_PARALLEL: "batch split",
    "zero2": "batch, optimizer split",
    "zero3": "batch, optimizer, weights split",
    "megatron": "batch, layers split by hand",
    PROPAGATION: "plain jax.jit, batch split",
    ILP_AGAIN: "alpa-ilp once more",
    FLEXFLOW: "Markov chain, its own costs",
    FLEXFLOW_OUR_COSTS: "Markov chain, CFP's costs",
    TOFU: "halvings, fewest bytes",
    TOFU_OUR_COSTS: "halvings, CFP's estimates",
    MAXTEXT: "FSDP and tensors by hand",
}


@dataclass(frozen=True, slots=True)
class Case:
    """A training step on a mesh.

    Attributes:
        model: A key of `alpa_cfp_bench.workloads.sizes.SIZES`.
        mesh: The logical mesh, such as "2x4".
        size: Of the model and its batch.
        num_micro_batches: None without gradient accumulation.
    """

    model: str
    mesh: str
    size: Size
    num_micro_batches: int | None = None

    @property
    def num_devices(self) -> int:
        return prod(mesh_shape(self.mesh))

    @property
    def micro_batch(self) -> int:
        """The samples of one micro-batch."""
        return self.size.batch // (self.num_micro_batches or 1)


# The ways in which `--method` can parallelize.
SHARD, PIPESHARD = "shard", "pipeshard"
COMPOSED, INTER_OP, DP_PIPELINE = "cfp-compose", "inter-op-only", "dp-pipeline"
# Of pipelines, in the order of the table.
PIPELINE_METHODS = {
    CFP: "alpa's pipeline with CFP inside; candidate stages are compiled and timed by alpa",
    COMPOSED: "alpa's pipeline with CFP inside; candidate stages cost what profiles of their segments add up to",
    ILP: "alpa's pipeline with Alpa's own planner inside; candidate stages are compiled and timed by alpa",
    ILP_AGAIN: "the same once more: by so much two pipelines differ that one planner made (only where it is named)",
    DP_PIPELINE: "alpa's pipeline with data parallelism inside, as PipeDream and DAPPLE make them; candidate stages "
    "are compiled and timed by alpa (only where it is named)",
    INTER_OP: "alpa's pipeline with one device a stage: nothing is split inside; candidate stages are compiled and "
    "timed by alpa (only where it is named)",
}
# Those of alpa for training, and those of `alpa_cfp.alpa.pipelines`.
SCHEDULES = ("1f1b", "gpipe", "1f1b_overlap_friendly", "interleaved_1f1b", "zero_bubble", "auto")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How a case is made a pipeline.

    Attributes:
        layers: Into how many layers alpa cuts the model; stages are made of them.
        stages: How many stages, a layer each; None if alpa chooses by what candidate stages cost.
        schedule: One of `SCHEDULES`.
    """

    layers: int
    stages: int | None
    schedule: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Ray cluster, and how much of it is used.

    Attributes:
        address: "<ip>:<port>", or `LOCAL`.
        hosts: How many hosts; None for all that have enough devices.
        devices_per_host: How many devices of each; None for all.
    """

    address: str
    hosts: int | None = None
    devices_per_host: int | None = None


def check_fits(mesh: str, hosts: int, devices_per_host: int) -> None:
    """Hold that a mesh has as many devices as hosts have together.

    Raises:
        HostsMeshError: it has not.
    """
    if prod(mesh_shape(mesh)) != hosts * devices_per_host:
        raise HostsMeshError(mesh, hosts, devices_per_host)


@dataclass(frozen=True, slots=True)
class Effort:
    """How often things run.

    Attributes:
        rounds: Samples of each copy.
        copies: Copies of each program: where arrays lie in memory changes the time of one by some per cent, for as long
            as it lives. Intervals are those of so few copies.
        samples: How often CFP runs each candidate while it plans.
        seed: Of the order in which things run.
    """

    rounds: int = 20
    copies: int = 4
    samples: int = 5
    seed: int = 0
