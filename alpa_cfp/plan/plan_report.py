"""The account of a plan: its blocks with what was chosen, what else could have been, and what all of it costs.

Made by `plan_evidence` when a plan is made, kept in the plan's JSON, and shown as text and pictures by `report`.
Invariants: it needs neither the program nor the database to be read; blocks of one kind share one `Kind`, so its size
grows with the kinds and not with the candidates times the depth; equal profiles give equal accounts.
"""

from dataclasses import dataclass, field
from typing import Literal

from alpa_cfp.codec import OMIT_DEFAULT

# What a mesh axis splits in a block: the samples (or positions) of activations; heads of attention; experts, which are
# in weights, too; "batch" is one of these two where it is not known which; weights by column (their outputs); by row
# (their inputs: results are sums over devices).
Role = Literal["samples", "heads", "experts", "batch", "columns", "rows"]
# Where a time comes from.
Source = Literal["measured", "estimated"]
# Where it is known from what a block communicates: from the program that is compiled; where XLA partitions that, from
# what came out, or as if each device computed whole what Shardy does not split.
CommunicationSource = Literal["program", "compiled", "predicted", "unknown"]
# What collectives bring together: gradients of weights alone; those and less of something else; weights.
Purpose = Literal["gradient", "mostly gradient", "weight"]


@dataclass(frozen=True, slots=True)
class Communication:
    """Equal collectives of one device's program.

    Attributes:
        kind: "all-reduce", "all-gather", "reduce-scatter", "all-to-all" or "collective-permute".
        axes: The mesh axes whose devices take part, by index; empty where they are no whole axes, or not known.
        size_bytes: What one of them takes and gives on a device.
        count: How many there are.
        purpose: What they are for; None where it is something else, or not known.
    """

    kind: str
    axes: tuple[int, ...]
    size_bytes: int
    count: int
    purpose: Purpose | None = None


@dataclass(frozen=True, slots=True)
class Alternative:
    """A strategy that a kind of block can have.

    Attributes:
        roles: For each mesh axis what it splits; None where its devices do the same.
        kept: Where state is kept (a value of `StateSharding`).
        time_s: What the block takes with it in a step by itself; None where nothing is known.
        source: Where `time_s` comes from.
        failure: Why it cannot be run, "" where it can.
        state_bytes, saved_bytes, transient_bytes: What a device holds the whole step, for the backward pass, and for a
            short time, of the first block of the kind; others may share their weights with it.
        flops: Floating-point operations of contractions on a device.
        communication: What the block by itself communicates.
        which: For each mesh axis which dim it is that it splits ("1st of 2 dims"), where a block has several with that
            role: samples and positions, heads and groups. None elsewhere; empty if none is meant.
        communication_source: Where `communication` comes from; it is empty where that is unknown.
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


@dataclass(frozen=True, slots=True)
class Kind:
    """Blocks that are the same program.

    Attributes:
        contraction: Its first forward contraction in words: "dot 512x128 by 128x384", "convolution 3x3, 64 to 128",
            "lookup in 1000x64"; "loop of 12 iterations" or "loop" of what stays a loop; "no contraction" without any.
        ops: How many ops a block has.
        without_rule: Names of its ops that have no sharding rule and are replicated, each once, without dialect.
        alternatives: All that there are, in the order of the candidates.
    """

    contraction: str
    ops: int
    without_rule: tuple[str, ...]
    alternatives: tuple[Alternative, ...]


@dataclass(frozen=True, slots=True)
class BlockReport:
    """A block of the program.

    Attributes:
        name: What a user calls it, from the scopes of its forward contraction
            ("encoder/layer/0/attention/qvk_combined"); "block 3" where the program says nothing.
        kind: The index of its kind in the account.
        chosen: The index of the chosen alternative.
        weights: Paths of the trained parameters that it uses, as the program names them: "state.params['w']"; "args[3]"
            through alpa.
        segment: The number of the repeated segment that it is in; equal for blocks of equal layers.
        repetition: Which of the equal segments it is in, counted from 0.
        parameters: The numbers of `weights` among the parameters of the program.
        state_bytes, saved_bytes, transient_bytes: What a device holds for it as chosen. The sums of the first two and
            the largest of the third are the predicted memory of the plan.
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
    """What it takes to bring values from one block to another as the plan is.

    Attributes:
        first, second: Indices of the blocks.
        time_s: Predicted, for a step.
        size_bytes: What a device sends in a step.
        collectives: How many collectives it takes in a step.
    """

    first: int
    second: int
    time_s: float
    size_bytes: int
    collectives: int


@dataclass(frozen=True, slots=True)
class Tried:
    """A plan that was compiled whole and timed beside the others.

    Attributes:
        name: "best predicted", "2nd predicted", or the name of a plain plan ("data parallel"); "best predicted (data
            parallel)" where they are the same.
        predicted_s, measured_s: What a step takes; `measured_s` None where it failed.
        needed_bytes: What a device needs by the compiled program; None where it failed.
        collectives: How many the program has; None where that is not known.
        failure: Why it could not be run, "" where it could.
        chosen: Whether it is the plan.
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
    """Something that the planner had to do without, or took in the place of what it wanted.

    Attributes:
        text: What, why, and what was taken instead.
        may_cost: Whether the plan may be worse for it.
    """

    text: str
    may_cost: bool


@dataclass(frozen=True, slots=True)
class PlanReport:
    """The account of a plan.

    Attributes:
        axis_names: Of the mesh; "axis 0" and so on where they are not known, as in what comes through alpa.
        kinds: The kinds of blocks.
        blocks: The blocks, in program order.
        moves: What goes between them, where it takes any communication.
        tried: The whole plans that were timed; empty where none was.
        overhead_s: What starting the program takes, which no block is charged for.
        programs_measured: How many programs were profiled, or looked up, for this plan, whole ones and those that tell
            how fast the mesh is included.
        gap_s: By how much at most another plan could be predicted to be faster than the best one that the search found;
            0 where it was exact, None where nothing was proved.
        caveats: What the planner had to do without.
    """

    axis_names: tuple[str, ...]
    kinds: tuple[Kind, ...]
    blocks: tuple[BlockReport, ...]
    moves: tuple[Move, ...]
    tried: tuple[Tried, ...]
    overhead_s: float
    programs_measured: int
    gap_s: float | None = field(default=0.0, metadata=OMIT_DEFAULT)
    caveats: tuple[Caveat, ...] = field(default=(), metadata=OMIT_DEFAULT)

    def __post_init__(self) -> None:
        for block in self.blocks:
            if block.kind >= len(self.kinds) or block.chosen >= len(self.kinds[block.kind].alternatives):
                raise ValueError(f"{block.name!r} has no alternative {block.chosen} of kind {block.kind}")
        for move in self.moves:
            if max(move.first, move.second) >= len(self.blocks):
                raise ValueError(f"nothing moves from block {move.first} to block {move.second}")
