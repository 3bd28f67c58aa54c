"""The plan report: the blocks of a plan with their strategies, the alternatives, and the costs of all of them.

It is made by `evidence` together with the plan, saved in the plan's JSON under `account`, and shown as text and as an
HTML page by `report`. Invariants: it can be read without the program and the database; blocks of one kind share one
`BlockKind`, so its size grows with the number of kinds and not with candidates times depth; equal profiles give equal
reports.
"""

from dataclasses import dataclass, field
from typing import Literal

from alpa_cfp.codec import MAY_BE_MISSING, OMIT_DEFAULT
from alpa_cfp.database import StepTimeline

# What a mesh axis splits in a block: samples (or positions) of activations; heads of attention; experts, which weights
# have too; "batch": heads or experts, if it is not known which; weights by column (their outputs); weights by row
# (their inputs, so that results are sums over devices).
Role = Literal["samples", "heads", "experts", "batch", "columns", "rows"]
# Where a time comes from.
Source = Literal["measured", "modelled", "estimated"]
# Where the collectives of a block were read: in the partitioned program; if XLA partitions it, in the compiled program,
# or in a prediction in which each device computes whole what Shardy's passes cannot split.
CommunicationSource = Literal["program", "compiled", "predicted", "unknown"]
# What collectives carry: gradients of weights only; mostly such gradients; weights.
Purpose = Literal["gradient", "mostly gradient", "weight"]


@dataclass(frozen=True, slots=True)
class Communication:
    """Equal collectives of one device's program.

    Attributes:
        kind: "all-reduce", "all-gather", "reduce-scatter", "all-to-all" or "collective-permute".
        axes: The mesh axes whose devices take part, by index; empty if they are not whole axes, or not known.
        size_bytes: Bytes of one of them on a device.
        count: Number of collectives.
        purpose: What they carry; None if it is something else, or not known.
    """

    kind: str
    axes: tuple[int, ...]
    size_bytes: int
    count: int
    purpose: Purpose | None = field(default=None, metadata=MAY_BE_MISSING)


@dataclass(frozen=True, slots=True)
class Alternative:
    """A strategy that blocks of one kind can have.

    Attributes:
        roles: For each mesh axis what it splits; None if its devices do the same.
        kept: The sharding of the state (a value of `StateSharding`).
        time_s: Time of one block in a step, without resharding; None if it is not known.
        source: Where `time_s` comes from.
        failure: Why it cannot be run; "" if it can.
        state_bytes, saved_bytes, transient_bytes: Memory of a device for the whole step, until the backward pass, and
            for a short time. It is that of the first block of the kind; others may share their weights with it.
        flops: Floating-point operations of contractions on a device.
        communication: Collectives of the block, without resharding.
        which: For each mesh axis which of several dims with the same role it splits ("1st of 2 dims"): samples and
            positions, heads and groups. None for an axis without such a choice; empty if no axis has one.
        communication_source: Where `communication` comes from; if that is "unknown", `communication` is empty.
        sums_along: What splits the sums over devices of which each device keeps a part ("samples", "samples, 1st of 2
            dims"); "" if each has them whole.
    """

    roles: tuple[Role | None, ...]
    kept: str
    time_s: float | None
    source: Source
    failure: str
    state_bytes: int
    saved_bytes: int
    transient_bytes: int
    flops: float
    communication: tuple[Communication, ...]
    which: tuple[str | None, ...] = ()
    communication_source: CommunicationSource = field(default="program", metadata=OMIT_DEFAULT)
    sums_along: str = field(default="", metadata=OMIT_DEFAULT)


@dataclass(frozen=True, slots=True)
class BlockKind:
    """A set of blocks with equal programs.

    Attributes:
        contraction: The first forward contraction: "dot 512x128 by 128x384", "convolution 3x3, 64 to 128", "lookup in
            1000x64"; of a loop "loop of 12 iterations" or "loop"; "no contraction" if there is none.
        ops: Number of ops in a block.
        without_rule: Names of ops without a sharding rule, which are replicated: each once, without dialect.
        alternatives: All strategies, in the order of the candidates.
    """

    contraction: str
    ops: int
    without_rule: tuple[str, ...]
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True)
class BlockReport:
    """A block of the program.

    Attributes:
        name: Its name in the user's program, from the scopes of its forward contraction
            ("encoder/layer/0/attention/qvk_combined"); "block 3" if the program has no such name.
        kind: Index of its kind in the report.
        chosen: Index of the chosen alternative.
        weights: Paths of the trained parameters that it uses, as in the program: "state.params['w']"; through alpa
            "args[3]".
        segment: Number of the repeated segment that it belongs to; equal for blocks of equal layers.
        repetition: Index of its segment among the equal ones, from 0.
        parameters: The numbers of `weights` among the parameters of the program.
        state_bytes, saved_bytes, transient_bytes: Memory of a device for it with the chosen strategy. The sums of the
            first two and the largest of the third are the predicted memory of the plan.
    """

    name: str
    kind: int
    chosen: int
    weights: tuple[str, ...]
    segment: int
    repetition: int = 0
    parameters: tuple[int, ...] = ()
    state_bytes: int = 0
    saved_bytes: int = 0
    transient_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Move:
    """Resharding of values between two blocks under the plan.

    Attributes:
        first, second: Indices of the blocks.
        time_s: Predicted time in a step.
        size_bytes: Bytes that a device sends in a step.
        collectives: Number of collectives in a step.
    """

    first: int
    second: int
    time_s: float
    size_bytes: int
    collectives: int


@dataclass(frozen=True, slots=True)
class TriedPlan:
    """A plan that was compiled whole and timed beside the others.

    Attributes:
        name: "best predicted", "2nd predicted", or the name of a baseline ("data parallel"); "best predicted (data
            parallel)" if they are the same plan.
        predicted_s, measured_s: Time of a step; `measured_s` is None if it failed.
        needed_bytes: Memory of a device by the compiled program; None if it failed.
        collectives: Number of collectives in the program; None if it is not known.
        failure: Why it could not be run; "" if it could.
        chosen: Whether it is the chosen plan.
    """

    name: str
    predicted_s: float
    measured_s: float | None
    needed_bytes: int | None
    collectives: int | None
    failure: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class Caveat:
    """A fallback or an omission of the planner.

    Attributes:
        text: What was missing, why, and what was taken instead.
        may_cost: Whether the plan may be worse because of it.
    """

    text: str
    may_cost: bool


@dataclass(frozen=True, slots=True)
class PlanReport:
    """The report of a plan.

    Attributes:
        axis_names: Names of the mesh's axes; "axis 0" and so on if they have none, as through alpa.
        kinds: The kinds of blocks.
        blocks: The blocks, in program order.
        moves: Resharding between blocks, if it needs communication.
        tried: The whole plans that were timed.
        overhead_s: Time to start the program, which is not part of any block's time.
        programs_measured: Number of programs that were profiled or looked up for this plan, including whole plans and
            the programs that calibrate the mesh.
        gap_s: Upper bound on how much faster the best plan could be predicted than the one that the search found; 0 if
            the search was exact, None if it proved no bound.
        caveats: Fallbacks and omissions of the planner.
        timeline: The step of one device, as modelled from the compiled program; None if the plan is for devices that
            are here, or was not compiled.

    Raises:
        ValueError: a block's strategy or a move's block does not exist.
    """

    axis_names: tuple[str, ...]
    kinds: tuple[BlockKind, ...]
    blocks: tuple[BlockReport, ...]
    moves: tuple[Move, ...]
    tried: tuple[TriedPlan, ...]
    overhead_s: float
    programs_measured: int
    gap_s: float | None = field(default=0.0, metadata=OMIT_DEFAULT)
    caveats: tuple[Caveat, ...] = field(default=(), metadata=OMIT_DEFAULT)
    timeline: StepTimeline | None = field(default=None, metadata=OMIT_DEFAULT)

    def __post_init__(self) -> None:
        for block in self.blocks:
            if block.kind >= len(self.kinds) or block.chosen >= len(self.kinds[block.kind].alternatives):
                raise ValueError(f"{block.name!r} has no alternative {block.chosen} of kind {block.kind}")
        for move in self.moves:
            if max(move.first, move.second) >= len(self.blocks):
                raise ValueError(f"nothing moves from block {move.first} to block {move.second}")

    def chosen(self, block: BlockReport) -> Alternative:
        """The chosen alternative of a block."""
        return self.kinds[block.kind].alternatives[block.chosen]
