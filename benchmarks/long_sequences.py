"""What splitting long sequences gains: plans that may split positions or keep sums in parts, beside plans that may not.

Takes cases of LLaMA with fewer samples than devices: `llama_long` on devices of this machine (llama_long@2x4), or a
published size on a target (7B/16384@h100:1x8@2x4). Plans each in three spaces, each with those before: samples, heads
and columns; positions of a sequence outside of attention, which is split by heads, with exchanges between (as Ulysses
does, arXiv 2309.14509); sums over devices that stay in parts, as in sequence parallelism. What is here is measured, the
plans side by side in several compiled copies; for targets it is modelled. Prints a line a case and writes
`results/long_sequences-*`. Invariant: plans of the wider spaces have a budget of 1.1 times the memory that the plan of
the narrowest one needs.
"""

import os
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Any, Literal, Self

import jax

from alpa_cfp import Plan, PlanOptions, target
from alpa_cfp.analysis.blocks import BlockFactor, Blocks, ParallelBlock
from alpa_cfp.analysis.contractions import Side
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.jit.meshes import AnyMesh, platform_of, request_for
from alpa_cfp.jit.tracing import trace
from alpa_cfp.planner.plan_programs import with_plan
from alpa_cfp.planner.planner import plan_whole
from alpa_cfp.profiling import MeasureOptions, Profiler
from alpa_cfp.search import MemoryBudgetError
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.targets.target import TargetMesh
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import abstract
from alpa_cfp_bench.workloads.published import SUITES
from alpa_cfp_bench.workloads.published_programs import program_of
from alpa_cfp_bench.workloads.sizes import SIZES, mesh_axes, mesh_shape
from benchmarks import reports, runner
from benchmarks.cfp_programs import profiler
from benchmarks.judging import judge
from benchmarks.runner import Benchmark, one_row

CASES = ("llama_long@2x4", "7B/16384@h100:1x8@2x4", "7B/32768@h100:1x8@2x4", "13B/16384@h100:1x8@2x4")
# The budget of the wider spaces, by what the plan of the narrowest needs. With that alone its own plan may be left out,
# since more is predicted for it than it needs.
_ROOM = 1.1
# Of published sizes: more are alike.
_LAYERS = 2
_SPACES = ("samples, heads, columns", "and positions", "and split sums")
_HEADER = (
    "case", "known by", *(f"{space}, ms" for space in _SPACES), "positions / without", "split sums / without",
    *(f"{space}, MB" for space in _SPACES), "blocks that split positions", "planning, s",
)  # fmt: skip
_TEXT = (
    "Steps of LLaMA with long sequences and fewer samples than devices, without rematerialisation; of the published "
    "sizes two layers. `samples, heads, columns`: the best plan that splits no positions of a sequence; `and "
    "positions`: the best one that may, outside of attention; `and split sums`: that may leave sums over devices in "
    "parts, too. `measured`: side by side on this machine, in several compiled copies; `modelled`: by the compiler of "
    "a target, which is not here. `MB`: what a device holds by the compiled program; the others' budget is 1.1 times "
    "what the first plan needs, and no more than a device has. `blocks that split positions` are of the second plan. "
    "`planning`: seconds of the three plans, each with a database of its own."
)


class _WithoutPositions(AnalysedProgram):
    """A program of which no positions of sequences are split.

    Args:
        module: The program.
        sequence: The number of positions of a sequence.
        samples: The number of sequences.
    """

    def __init__(self, module: HloModule, sequence: int, samples: int) -> None:
        super().__init__(module)
        self._sequence, self._samples = sequence, samples

    @cached_property
    def blocks(self) -> Blocks:
        found = AnalysedProgram(self.module).blocks
        return replace(found, blocks=tuple(map(self._narrowed, found.blocks)))

    def _narrowed(self, block: ParallelBlock) -> ParallelBlock:
        """A block without factors of as many parts as there are positions, of one sequence or of all."""
        factors = (
            replace(each, usable=False) if splits_positions(each, self._sequence, self._samples) else each
            for each in block.factors
        )
        return replace(block, factors=tuple(factors))


def splits_positions(factor: BlockFactor, sequence: int, samples: int) -> bool:
    """Whether a factor of a block is positions of one sample, or of all samples after each other."""
    is_of_all = factor.side is Side.LEFT and factor.max_shards == samples * sequence
    return factor.max_shards == sequence or is_of_all


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that the command line names."""
    parser = runner.parser(__doc__)
    parser.add_argument("--cases", nargs="+", default=CASES, metavar="CASE", help=f"such as {CASES[0]} or {CASES[1]}")
    parser.add_argument("--samples", type=int, default=30, help="runs of each copy of a plan that is measured")
    options = parser.parse_args(argv)
    results = (_of_case(case, options.samples) for case in options.cases)
    return Benchmark("long_sequences", _TEXT, _HEADER, one_row(_cells), _verdict).run(results, options)


@dataclass(frozen=True)
class _Case:
    """A training step and its devices.

    Attributes:
        module: The step, unoptimised.
        mesh: The devices.
        costs: How costs are known, as of `PlanOptions`.
        sequence, samples: The positions of a sample, and the samples.
    """

    module: HloModule
    mesh: AnyMesh
    costs: Literal["measure", "compile"]
    sequence: int
    samples: int

    @classmethod
    def here(cls, model: str, mesh_name: str) -> Self:
        """A model of the race on devices of this machine."""
        size, shape = SIZES[model], mesh_shape(mesh_name)
        built, mesh = abstract(model, size), jax.make_mesh(shape, mesh_axes(shape))
        step = train_step(built, jax.value_and_grad)
        module = trace(step, (built.state, built.batch), {}, 0, platform_of(mesh)).module
        return cls(module, mesh, "measure", size.sequence, size.batch)

    @classmethod
    def there(cls, size: str, sequence: int, devices: str, shape: tuple[int, int]) -> Self:
        """A published size of LLaMA on a target, with a sample for each device of the first axis."""
        samples, mesh = shape[0], target(devices).mesh(shape)
        changes = {"layers": _LAYERS, "sequence": sequence, "batch": samples, "micro_batches": 1, "mesh": (samples, 1)}
        program = program_of(replace(SUITES["llama"][size], **changes), remat=False)
        module = trace(program.step, (program.state, program.batch), {}, 0, platform_of(mesh)).module
        return cls(module, mesh, "compile", sequence, samples)

    @classmethod
    def of(cls, text: str) -> Self:
        """The case that a text names."""
        model, _, place = text.partition("@")
        if model == "llama_long":
            return cls.here(model, place)
        found = re.fullmatch(r"(\w+)/(\d+)@(.*)@(\d+)x(\d+)", text)
        if found is None or found[1] not in SUITES["llama"]:
            raise SystemExit(f"there is no case {text}; there are such as {', '.join(CASES)}")
        return cls.there(found[1], int(found[2]), found[3], (int(found[4]), int(found[5])))

    def room_for(self, needed_bytes: int) -> int:
        """The budget of plans beside one that needs so much."""
        room = int(_ROOM * needed_bytes)
        return min(room, self.mesh.target.chip.memory_bytes) if isinstance(self.mesh, TargetMesh) else room


def _of_case(text: str, runs: int) -> dict[str, Any]:
    case, started = _Case.of(text), time.perf_counter()
    narrow, wide = _WithoutPositions(case.module, case.sequence, case.samples), AnalysedProgram(case.module)
    programs = (narrow, wide, wide)
    first = _planned(narrow, case, None, split_sums=False)
    budget = None if first is None or not first.needed_bytes else case.room_for(first.needed_bytes)
    plans = [first, *(_planned(wide, case, budget, split_sums=split_sums) for split_sums in (False, True))]
    planning_s = time.perf_counter() - started
    seconds = [None if each is None else each.measured_s for each in plans]
    if case.costs == "measure":
        seconds = _measured(programs, plans, runs)
    return {
        "case": text,
        "known_by": "measured" if case.costs == "measure" else "modelled",
        "seconds": seconds,
        "bytes": [None if each is None else each.needed_bytes for each in plans],
        "splitting": [_splitting(program, plan, case) for program, plan in zip(programs, plans, strict=True)],
        "blocks": len(wide.blocks.blocks),
        "planning_s": planning_s,
        "load_average": os.getloadavg()[0],
    }


def _planned(program: AnalysedProgram, case: _Case, budget: int | None, *, split_sums: bool) -> Plan | None:
    """The best plan of a program within a budget of memory; None if none fits.

    Each has a database of its own: a cached plan is known by the module, which is the same for all spaces.
    """
    with tempfile.TemporaryDirectory() as directory:
        option = PlanOptions(
            costs=case.costs, memory_budget_bytes=budget, split_sums=split_sums, recompute=False, progress=False,
            database=Path(directory) / "profiles.sqlite",
        )  # fmt: skip
        try:
            return plan_whole(program, request_for(case.mesh), option).plan
        except MemoryBudgetError:
            return None


def _measured(programs: Sequence[AnalysedProgram], plans: Sequence[Plan | None], runs: int) -> list[float | None]:
    """What steps by the plans, which are all for one mesh, take side by side."""
    made = {
        (number,): with_plan(program.module, program.blocks, LogicalMesh(plan.mesh_shape), plan.strategies)
        for number, (program, plan) in enumerate(zip(programs, plans, strict=True))
        if plan is not None
    }
    if not made:
        return [None] * len(plans)
    (shape,) = {plan.mesh_shape for plan in plans if plan is not None}
    mesh, options = LogicalMesh(shape), MeasureOptions(progress=False)
    with tempfile.TemporaryDirectory() as directory:
        numbers = count()

        def fresh() -> AbstractContextManager[Profiler]:
            return profiler(mesh, Path(directory) / f"{next(numbers)}.sqlite", options)

        judged = judge(fresh, made, runs, [[name] for name in made])
    return [judged.seconds.get((number,)) for number in range(len(plans))]


def _splitting(program: AnalysedProgram, plan: Plan | None, case: _Case) -> int:
    """The number of blocks whose strategy splits positions."""
    is_position = partial(splits_positions, sequence=case.sequence, samples=case.samples)
    pairs = () if plan is None else zip(program.blocks.blocks, plan.strategies, strict=True)
    return sum(
        any(factor is not None and is_position(block.factors[factor]) for factor in strategy.factors)
        for block, strategy in pairs
    )


def _ratio(result: dict[str, Any], number: int) -> float | None:
    """What a plan of a wider space takes by that of the narrowest one."""
    narrow, wide = result["seconds"][0], result["seconds"][number]
    return None if None in (narrow, wide) else wide / narrow


def _cells(result: dict[str, Any]) -> list[str]:
    def said(value: float | None, factor: float, digits: int) -> str:
        return "no plan" if value is None else f"{factor * value:.{digits}f}"

    ratios = [_ratio(result, number) for number in (1, 2)]
    return [
        result["case"],
        result["known_by"],
        *(said(each, 1e3, 1) for each in result["seconds"]),
        *("" if each is None else f"{each:.3f}" for each in ratios),
        *(said(each, 1e-6, 1) for each in result["bytes"]),
        f"{result['splitting'][1]} of {result['blocks']}",
        f"{result['planning_s']:.0f}",
    ]


def _verdict(rows: Sequence[reports.Row]) -> str:
    said = []
    for number, space in enumerate(_SPACES[1:], start=1):
        ratios = [(row["case"], ratio) for row in rows if (ratio := _ratio(dict(row), number)) is not None]
        said += [f"{space}: {', '.join(f'{case} {ratio:.3f}' for case, ratio in ratios)}"] if ratios else []
    return f"By the time of plans that split samples, heads and columns only: {'; '.join(said) or 'no plans'}."


if __name__ == "__main__":
    sys.exit(main())
