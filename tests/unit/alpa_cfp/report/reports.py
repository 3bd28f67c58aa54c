"""Plan reports written by hand, as planning makes them: GPT of any depth, a mixture of experts, and missing values.

Invariant: numbers are plausible ones of a 2x4 mesh, and the plan's totals are near those of its parts.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from alpa_cfp.database import StepTimeline
from alpa_cfp.database.timelines import TimelineEntry, totals_of
from alpa_cfp.plan.plan import Plan
from alpa_cfp.plan.plan_report import (
    Alternative,
    BlockKind,
    BlockReport,
    Communication,
    Move,
    PlanReport,
    Role,
    Source,
    TriedPlan,
)
from alpa_cfp.search import MemoryUse
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding

MESH = (2, 4)
AXES = ("axis 0", "axis 1")
MB = 1_000_000
Roles = tuple[Role | None, ...]
# What each kind of block may be, and how much slower it gets by it.
_ROLES: tuple[tuple[Roles, float], ...] = (
    (("samples", "columns"), 1.0),
    (("samples", "rows"), 1.12),
    (("samples", "samples"), 1.31),
    (("columns", "samples"), 1.45),
    (("samples", None), 3.2),
    ((None, None), 7.6),
)


def alternative(
    roles: Roles,
    time_s: float | None,
    weight_bytes: int,
    saved_bytes: int,
    *,
    kept: StateSharding = StateSharding.REPLICATED,
    source: Source = "measured",
    failure: str = "",
) -> Alternative:
    """A strategy of a block whose weights take `weight_bytes`, with the collectives that it would have."""
    ways = math.prod(MESH[axis] for axis, role in enumerate(roles) if role in ("experts", "columns", "rows"))
    sample_axes = tuple(axis for axis, role in enumerate(roles) if role == "samples")
    split_axes = tuple(axis for axis, role in enumerate(roles) if role in ("columns", "rows"))
    communication = []
    if sample_axes and weight_bytes:
        communication.append(Communication("all-reduce", sample_axes, weight_bytes // ways, 1, "gradient"))
    if split_axes:
        communication.append(Communication("all-reduce", split_axes, saved_bytes // 2, 2))
    sharing = 8 // ways if kept is not StateSharding.REPLICATED else 1
    return Alternative(
        roles=roles,
        kept=kept.value,
        time_s=time_s,
        source=source,
        failure=failure,
        state_bytes=3 * weight_bytes // ways // sharing,
        saved_bytes=saved_bytes,
        transient_bytes=saved_bytes // 3,
        flops=16e9 / math.prod(MESH[axis] for axis, role in enumerate(roles) if role),
        communication=tuple(communication),
    )


def kind(
    contraction: str, time_s: float, weight_bytes: int, saved_bytes: int, without_rule: tuple[str, ...] = ()
) -> BlockKind:
    """A kind of block whose first alternative is the fastest; one is estimated, one cannot be run."""
    found = [
        alternative(roles, factor * time_s, weight_bytes, saved_bytes, source="estimated" if factor > 7 else "measured")
        for roles, factor in _ROLES
    ]
    found.append(
        alternative(("samples", "samples"), 1.35 * time_s, weight_bytes, saved_bytes, kept=StateSharding.ZERO2)
    )
    found.append(alternative(("samples", "samples"), 1.6 * time_s, weight_bytes, saved_bytes, kept=StateSharding.ZERO3))
    failure = "XlaRuntimeError: RESOURCE_EXHAUSTED: out of memory\n while allocating <buffer>"
    found.append(alternative(("rows", "rows"), None, weight_bytes, saved_bytes, failure=failure))
    return BlockKind(contraction, 14, without_rule, tuple(found))


def with_memory(kinds: Sequence[BlockKind], blocks: Sequence[BlockReport]) -> tuple[BlockReport, ...]:
    """Blocks that hold what their alternatives do."""
    own = [kinds[block.kind].alternatives[block.chosen] for block in blocks]
    return tuple(
        replace(
            block,
            state_bytes=each.state_bytes,
            saved_bytes=each.saved_bytes,
            transient_bytes=each.transient_bytes,
        )
        for block, each in zip(blocks, own, strict=True)
    )


def gpt(layers: int = 2) -> PlanReport:
    """A GPT of width 1024, as Megatron would split it along axis 1; one of its plans could not be run end to end."""
    kinds = (
        kind("lookup in 51200x1024", 0.00052, 210 * MB, 4 * MB),
        kind("dot 1024x1024 by 1024x3072", 0.00061, 12 * MB, 9 * MB, ("sort",)),
        kind("dot 1024x1024 by 1024x1024", 0.00022, 4_200_000, 2 * MB),
        kind("dot 1024x1024 by 1024x4096", 0.00071, 17 * MB, 8 * MB),
        kind("dot 1024x4096 by 4096x1024", 0.00069, 17 * MB, 2 * MB),
        kind("dot 1024x1024 by 1024x51200", 0.0018, 210 * MB, 26 * MB),
    )
    blocks = [BlockReport("embeddings/word", 0, 0, ("params/embeddings/word/embedding",), 0)]
    names = ("attention/qvk_combined", "attention/output", "mlp/up", "mlp/down")
    chosen = (0, 1, 0, 1)
    for layer in range(layers):
        for number, name in enumerate(names):
            path = f"encoder/layer/{layer}/{name}"
            weights = (f"params/{path}/kernel", f"params/{path}/bias")
            blocks.append(BlockReport(path, 1 + number, chosen[number], weights, 1, layer))
    blocks.append(BlockReport("lm_head", 5, 0, ("params/lm_head/kernel",), 2))
    moves = [Move(0, 1, 0.00009, 1 * MB, 1)]
    moves += [Move(2 + 4 * layer, 3 + 4 * layer, 0.00004, MB // 2, 1) for layer in range(layers)]
    moves += [Move(4 * layers, 4 * layers + 1, 0.00011, 2 * MB, 2)]
    whole = 0.0031 + layers * 0.0025
    tried = (
        TriedPlan("best predicted", whole, 1.04 * whole, 900 * MB, 6 + 4 * layers, "", True),
        TriedPlan("2nd predicted", 1.01 * whole, 1.09 * whole, 920 * MB, 8 + 4 * layers, "", False),
        TriedPlan("data parallel", 1.25 * whole, 1.41 * whole, 1_900 * MB, 1, "", False),
        TriedPlan("ZeRO-3", 1.28 * whole, None, None, 0, "out of memory: RESOURCE_EXHAUSTED", False),
    )
    return PlanReport(AXES, kinds, with_memory(kinds, blocks), tuple(moves), tried, 0.00012, 54)


def moe() -> PlanReport:
    """A mixture of experts: dense layers and layers of experts by turns, experts split along axis 1."""
    expert = kind("8 dots 512x1024 by 1024x4096", 0.0014, 134 * MB, 16 * MB, ("top_k", "sort"))
    split = alternative(("samples", "experts"), 0.0011, 134 * MB, 16 * MB)
    shuffled = replace(split, communication=(Communication("all-to-all", (1,), 3 * MB, 4), *split.communication))
    kinds = (
        kind("dot 1024x1024 by 1024x3072", 0.00061, 12 * MB, 9 * MB),
        kind("dot 1024x1024 by 1024x4096", 0.00071, 17 * MB, 8 * MB),
        kind("dot 1024x1024 by 1024x8", 0.00008, 32_768, 1 * MB),
        replace(expert, alternatives=(*expert.alternatives, shuffled)),
    )
    blocks = []
    for layer in range(6):
        path, segment, repetition = f"layer_{layer}", layer % 2, layer // 2
        names = {"attention": (0, 0), "mlp": (1, 2)}
        if segment:
            names = {"attention": (0, 0), "router": (2, 4), "experts": (3, len(expert.alternatives))}
        for name, (own, chosen) in names.items():
            weights = (f"params/{path}/{name}/kernel",)
            blocks.append(BlockReport(f"{path}/{name}", own, chosen, weights, segment, repetition))
    return PlanReport(AXES, kinds, with_memory(kinds, blocks), (Move(1, 2, 0.0002, 4 * MB, 2),), (), 0.0001, 0)


def unmeasured() -> PlanReport:
    """A small program that was only estimated, with nothing known of one block's time."""
    known = kind("dot 64x32 by 32x128", 0.0001, 16_384, 8_192)
    unknown = replace(known, alternatives=tuple(replace(each, time_s=None) for each in known.alternatives))
    estimated = replace(known, alternatives=tuple(replace(each, source="estimated") for each in known.alternatives))
    kinds = (estimated, unknown)
    blocks = (BlockReport("block 0", 0, 0, (), 0), BlockReport("block 1", 1, 0, (), 1))
    return PlanReport(AXES, kinds, with_memory(kinds, blocks), (), (), 0.0, 0)


def hostile() -> PlanReport:
    """Names that would break a page that does not escape them."""
    report = gpt(2)
    evil = "</script><script>alert(1)</script>&\"'"
    blocks = tuple(replace(block, name=f"{evil}/{block.name}", weights=(evil,)) for block in report.blocks)
    kinds = tuple(replace(each, contraction=evil, without_rule=(evil,)) for each in report.kinds)
    tried = tuple(replace(each, name=evil) for each in report.tried)
    return replace(report, blocks=blocks, kinds=kinds, tried=tried, axis_names=("<b>0</b>", '"1"'))


def plan_of(report: PlanReport | None, program: str = "ab" * 32, blocks: int = 3) -> Plan:
    """The plan of a report; without one, a plan of `blocks` blocks."""
    if report is None:
        strategies = (BlockStrategy((0, None)),) * (blocks - 1) + (BlockStrategy((None, None)),)
        return Plan(program, MESH, strategies, 0.012, MemoryUse(3 * MB, 2 * MB, 1 * MB), "measure")
    chosen = [report.kinds[block.kind].alternatives[block.chosen] for block in report.blocks]
    strategies = tuple(
        BlockStrategy(tuple(None if role is None else 0 for role in each.roles), StateSharding(each.kept))
        for each in chosen
    )
    memory = MemoryUse(
        sum(block.state_bytes for block in report.blocks),
        sum(block.saved_bytes for block in report.blocks),
        max((block.transient_bytes for block in report.blocks), default=0),
    )
    parts = sum(each.time_s or 0.0 for each in chosen) + sum(move.time_s for move in report.moves)
    whole = next((each for each in report.tried if each.chosen), None)
    return Plan(
        program,
        MESH,
        strategies,
        whole.predicted_s if whole else parts + report.overhead_s,
        memory,
        "measure" if report.programs_measured else "estimate",
        measured_s=whole.measured_s if whole else None,
        needed_bytes=whole.needed_bytes if whole else None,
        account=report,
    )


def queues(layers: int = 4) -> StepTimeline:
    """The modelled step of a few layers: each gathers weights beside the products before it, and waits for a sum."""
    entries, now_ns = list[TimelineEntry](), 0
    for number in range(layers):
        if number:
            entries.append(TimelineEntry("communicating", "all-gather", now_ns, now_ns + 30_000, 8 * MB))
        for kind, took_ns, size in (("product", 80_000, 48 * MB), ("fusion", 20_000, 16 * MB)):
            entries.append(TimelineEntry("computing", kind, now_ns, now_ns + took_ns, size))
            now_ns += took_ns
        start_ns, now_ns = now_ns - 10_000, now_ns + 40_000
        entries.append(TimelineEntry("communicating", "all-reduce", start_ns, now_ns, 32 * MB, exposed_ns=40_000))
    entries.sort(key=lambda each: (each.start_ns, each.end_ns))
    computing_s, communicating_s, exposed_s = layers * 100e-6, layers * 80e-6 - 30e-6, layers * 40e-6
    found, hidden_s = tuple(entries), communicating_s - exposed_s
    return StepTimeline(computing_s + exposed_s, computing_s, communicating_s, hidden_s, 0.0, found, totals_of(found))


def modelled(timeline: StepTimeline | None = None) -> Plan:
    """A plan for a target, of which the compiled program has this timeline, or that of a few layers."""
    plan = plan_of(replace(gpt(), timeline=timeline or queues()))
    return replace(plan, costs="compile")
