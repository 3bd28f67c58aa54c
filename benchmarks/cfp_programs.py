"""The inputs of CFP's benchmarks: the training step of a model as CFP sees it, and its plans.

Takes a model and a mesh by name; gives the module, its blocks, its candidates, and a `PlanSearch` that measures them on
this process' devices. Invariant: the module is that which `alpa.parallelize` would hand over, without micro-batches.
"""

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import jax

from alpa_cfp import PlanOptions
from alpa_cfp.analysis.blocks import Blocks, ParallelBlock
from alpa_cfp.analysis.contractions import Side
from alpa_cfp.candidates.block_candidates import BlockCandidates, CandidateCache, find_block_candidates
from alpa_cfp.candidates.candidate import Candidate
from alpa_cfp.costs import Rates
from alpa_cfp.database import ProfileDatabase
from alpa_cfp.extraction.analysed_program import AnalysedProgram
from alpa_cfp.planner.plan_candidates import PlanCandidates
from alpa_cfp.planner.plan_programs import with_plan
from alpa_cfp.profiling import DeviceDescription, MeasureOptions, Profiler, key_of
from alpa_cfp.select.alike import first_measured
from alpa_cfp.select.candidate_costs import CandidateCosts
from alpa_cfp.select.communication import reference_programs
from alpa_cfp.select.mesh_costs import mesh_costs
from alpa_cfp.select.plan_search import PlanSearch
from alpa_cfp.select.planned_program import PlannedProgram
from alpa_cfp.select.search_problem import find_boundaries
from alpa_cfp.spmd.compile.executable import Client
from alpa_cfp.spmd.module.combiner_limits import CombinerLimits
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding
from alpa_cfp_bench.workloads.model import training_step
from alpa_cfp_bench.workloads.models import build
from alpa_cfp_bench.workloads.sizes import Size

_LETTERS = {Side.BATCH: "b", Side.LEFT: "l", Side.RIGHT: "r", Side.REDUCTION: "s"}
_MARKS = {StateSharding.REPLICATED: "", StateSharding.ZERO2: "2", StateSharding.ZERO3: "3"}


@dataclass(frozen=True)
class Step:
    """A training step and its candidates on a mesh.

    Attributes:
        module: The step, unoptimised.
        mesh: The logical mesh.
        blocks: The step's blocks.
        block_candidates: Their candidates.
    """

    module: HloModule
    mesh: LogicalMesh
    blocks: Blocks
    block_candidates: tuple[BlockCandidates, ...]

    def planned(self, choices: Sequence[int]) -> HloModule:
        """The whole step with a candidate for each block, partitioned."""
        return with_plan(self.module, self.blocks, self.mesh, self.strategies(choices))

    def strategies(self, choices: Sequence[int]) -> tuple[BlockStrategy, ...]:
        """The strategy of each block."""
        pairs = zip(self.block_candidates, choices, strict=True)
        return tuple(block.candidates[choice].strategy for block, choice in pairs)

    def choices(self, strategies: Sequence[BlockStrategy]) -> tuple[int, ...] | None:
        """The candidates with these strategies; None if a block has no such candidate."""
        found = list[int]()
        for block, strategy in zip(self.block_candidates, strategies, strict=True):
            own = [candidate.strategy for candidate in block.candidates]
            if strategy not in own:
                return None
            found.append(own.index(strategy))
        return tuple(found)

    def describe(self, choices: Sequence[int]) -> str:
        """For each block, for each mesh axis, the side of what it splits ("." for nothing; the second factor of a side
        is "l'"), whether sums are split ("/"), and how it shares state.
        """
        words = []
        for block, choice in zip(self.block_candidates, choices, strict=True):
            strategy = block.candidates[choice].strategy
            all_sides = [factor.side for factor in self.blocks.blocks[block.block].factors]
            names = [_LETTERS[side] + "'" * all_sides[:i].count(side) for i, side in enumerate(all_sides)]
            sides = ("." if factor is None else names[factor] for factor in strategy.factors)
            sums = "" if strategy.sums_along is None else "/"
            words.append("".join(sides) + sums + _MARKS[strategy.state_sharding])
        return " ".join(words)


def training_module(name: str, size: Size) -> HloModule:
    """The unoptimised training step of a model, its state donated."""
    model = build(name, size)
    return module_of(name, training_step(model, jax.value_and_grad), model.state, model.batch)


def module_of(name: str, function: Callable[..., Any], state: Any, batch: Any, platform: str = "cpu") -> HloModule:
    """A function of (state, batch), its state donated, unoptimised, as JAX lowers it for a platform."""
    step = jax.jit(function, keep_unused=True, donate_argnums=(0,))
    lowered = step.trace(state, batch).lower(lowering_platforms=(platform,))
    states, batches = (len(jax.tree.leaves(each)) for each in (state, batch))
    text = str(lowered.compiler_ir("stablehlo"))
    module = HloModule.from_stablehlo(name, text, (True,) * states + (False,) * batches)
    module.combiner_limits = CombinerLimits.on(platform)
    return module


def step_of(name: str, size: Size, mesh_shape: tuple[int, ...]) -> Step:
    """A model's training step on a mesh."""
    return step_of_module(training_module(name, size), mesh_shape)


def step_of_module(module: HloModule, mesh_shape: tuple[int, ...]) -> Step:
    """The same for any unoptimised module."""
    return every_candidate(AnalysedProgram(module), LogicalMesh(mesh_shape))


def every_candidate(program: AnalysedProgram, mesh: LogicalMesh, cache: CandidateCache | None = None) -> Step:
    """A step with the candidates of all strategies."""
    return Step(program.module, mesh, program.blocks, find_block_candidates(program.subprograms, mesh, cache))


def planners_candidates(
    program: AnalysedProgram, mesh: LogicalMesh, measuring: Profiler, cache: CandidateCache
) -> Step:
    """A step with the candidates among which the planner chooses."""
    options = PlanOptions(baselines=False)

    def tell(block: ParallelBlock, candidates: Sequence[Candidate]) -> None:
        measuring.expect(first_measured(block, candidates, Rates()))

    candidates = PlanCandidates(
        program, mesh, options, lambda: mesh_costs(mesh, measuring.measure), cache=cache, tell=tell
    )
    return Step(program.module, mesh, program.blocks, tuple(candidates.find()))


def changed(step: Step, choices: Sequence[int], drawn: random.Random) -> tuple[int, ...]:
    """A plan with other candidates for some kinds of blocks, one to all of them."""
    counts = {block.kind: len(block.candidates) for block in step.block_candidates}
    changed = {
        kind: drawn.randrange(counts[kind]) for kind in drawn.sample(sorted(counts), drawn.randint(1, len(counts)))
    }
    return tuple(changed.get(block.kind, choice) for block, choice in zip(step.block_candidates, choices, strict=True))


@contextlib.contextmanager
def profiler(mesh: LogicalMesh, database: Path | str | None, options: MeasureOptions) -> Iterator[Profiler]:
    """For the time of the context, what measures on the first devices of this process."""
    client = Client(jax.local_devices()[: prod(mesh.shape)])
    references = reference_programs(mesh)
    with ProfileDatabase.open(database) as opened, Profiler(client, opened, options, references) as made:
        yield made


def copy_speed(mesh: LogicalMesh, source: Path, target: Path) -> None:
    """Have times in a new database be those at the speed that the mesh had for another one (see `Profiler`)."""
    devices = DeviceDescription.of(jax.local_devices()[: prod(mesh.shape)])
    with ProfileDatabase.open(source) as known, ProfileDatabase.open(target) as made:
        for module in reference_programs(mesh):
            key, text = key_of(module, devices)
            profile = known.get(key)
            if profile is not None:
                made.put(key, profile, program_text=text)


def choosing(step: Step, measuring: Profiler, margin: float) -> tuple[Rates, PlanSearch]:
    """The mesh's rates, and what chooses among the candidates of a step."""
    rates, communication = mesh_costs(step.mesh, measuring.measure)
    boundaries = find_boundaries(step.module, step.blocks, step.block_candidates)
    costs = CandidateCosts(
        step.block_candidates, boundaries, rates, measuring.measure, margin, communication=communication
    )

    def planned(choices: Sequence[int]) -> PlannedProgram:
        return PlannedProgram.of_whole(step.planned(choices), len(step.blocks.blocks))

    return rates, PlanSearch(costs, planned=planned, limit_s=PlanOptions().search_limit_s)
