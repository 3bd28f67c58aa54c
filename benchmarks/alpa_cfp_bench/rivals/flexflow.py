"""FlexFlow's search: Markov-chain Monte Carlo over the strategies of blocks (arXiv 1807.05358, section 6).

Takes a search problem and plans to start from; gives the best plan that the chains met. A proposal gives one block,
drawn at random, a strategy that is drawn at random, and is accepted with the probability
min(1, exp(beta * (old cost - new cost))): the Metropolis-Hastings rule, where a proposal and its reverse are equally
likely (section 6.1). Only the terms of that block are computed again, in the place of the paper's delta simulation.
Invariants: no plan is worse than those from which the chains start; the same problem, starts and seed give the same
plan.
"""

import logging
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from alpa_cfp.analysis.blocks import ParallelBlock
from alpa_cfp.analysis.contractions import Side
from alpa_cfp.costs import Rates
from alpa_cfp.search import NoPlanError, SearchProblem, Solution
from alpa_cfp.select.candidate_costs import CandidateCosts
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding
from alpa_cfp_bench.rivals.space import Space, moving_problem, moving_rates, with_times

logger = logging.getLogger(__name__)

# Beta, in units of one over the cost of the first start: with 100, a plan that is slower by a hundredth of that is
# accepted with the probability 1/e. The paper gives no number, and none is best for all programs: a large one is for
# many blocks, each of which costs little of the whole, a small one for few.
_BETAS = (10.0, 100.0, 400.0)
# How often each strategy of each block is proposed, on average, before a chain may end; and the proposals of a chain.
_LEAST_OF_EACH, _MOST = 50, 1_000_000


@dataclass(frozen=True, slots=True)
class Chain:
    """How long a chain is, and how it accepts.

    Attributes:
        betas: Of the acceptance, in units of one over the cost of the first start: a chain of each from each start.
        least: The proposals before it may end; None for fifty for each choice of each variable.
        most: The proposals at most.
    """

    betas: tuple[float, ...] = _BETAS
    least: int | None = None
    most: int = _MOST


def in_soap(block: ParallelBlock, strategies: Sequence[BlockStrategy]) -> list[bool]:
    """Which strategies FlexFlow has (section 4): what is split is a dim of an operator's output, of samples, attributes
    or parameters, and no sum; weights and moments are kept as they are used.
    """

    def is_in(strategy: BlockStrategy) -> bool:
        split = (block.factors[factor].side for factor in strategy.factors if factor is not None)
        return strategy.state_sharding is StateSharding.REPLICATED and Side.REDUCTION not in split

    return [is_in(strategy) for strategy in strategies]


def simulated_problem(space: Space, costs: CandidateCosts, rates: Rates) -> SearchProblem:
    """The search problem of FlexFlow's simulator, in seconds (section 5).

    A block takes what it takes on a device by itself, as measured (assumption A1); what is moved takes its bytes by the
    bandwidth of a link, without latency (A2). One follows the other: nothing runs beside it.

    Args:
        space: The candidates.
        costs: The times of what they compute.
        rates: The rates of the mesh, of which the bandwidth counts.
    """
    # A program that XLA partitions is measured with what it communicates.
    moving = moving_problem(
        space, moving_rates(rates.link_bytes_per_s), costs.micro_batches, lambda candidate: not candidate.predicted
    )
    times = [[costs.micro_batches * _computing_s(costs, number) for number in numbers] for numbers in costs.numbers]
    return with_times(moving, times)


def _computing_s(costs: CandidateCosts, number: int) -> float:
    """What a candidate computes in a micro-batch; inf if it cannot be run."""
    failed = costs.seconds.get(costs.target(number)) == math.inf
    return math.inf if failed else float(costs.means.computing_s[number])


def random_plans(problem: SearchProblem, count: int, seed: int) -> list[tuple[int, ...]]:
    """Plans of choices that are drawn from those that are not excluded."""
    drawn, able = random.Random(seed), _able(problem)
    return [tuple(drawn.choice(choices) for choices in able) for _ in range(count)]


def best_of_chains(
    problem: SearchProblem, starts: Sequence[Sequence[int]], seed: int, chain: Chain | None = None
) -> Solution:
    """The best plan that chains meet, from each start (section 6.2).

    A chain ends when no better plan was met for half of its proposals, or after so many proposals as `chain` says.

    Args:
        problem: What plans cost.
        starts: Plans, one at least.
        seed: Of all that is drawn.
        chain: How a chain goes on and ends; None for the usual.

    Raises:
        NoPlanError: a variable has excluded choices only.
    """
    chain, drawn = chain or Chain(), random.Random(seed)
    walk, unit = _Walk(problem, chain), problem.time(starts[0])
    betas = [beta / unit if unit > 0 else beta for beta in chain.betas]
    found = [walk.best(start, beta, drawn) for start in starts for beta in betas]
    best = min([*map(tuple, starts), *found], key=problem.time)
    logger.info("FlexFlow: a plan of %.6g from %d chains", problem.time(best), len(found))
    return problem.solution(best)


class _Walk:
    """A walk from plan to plan.

    Args:
        problem: What plans cost.
        chain: How it ends.
    """

    def __init__(self, problem: SearchProblem, chain: Chain) -> None:
        self._problem, self._able = problem, _able(problem)
        self._own, self._neighbours = [each.time_s.tolist() for each in problem.variables], problem.neighbours()
        self._least = _LEAST_OF_EACH * sum(map(len, self._able)) if chain.least is None else chain.least
        self._most = chain.most

    def best(self, start: Sequence[int], beta: float, drawn: random.Random) -> tuple[int, ...]:
        """The best plan of a walk that accepts by `beta`, in units of one over the problem's costs."""
        plan, number, met = list(start), 0, 0
        best, cost = tuple(plan), self._problem.time(plan)
        least = cost
        while number < min(self._most, max(self._least, 2 * met)):
            number += 1
            variable = drawn.randrange(len(plan))
            choice = drawn.choice(self._able[variable])
            change = self._change(plan, variable, choice)
            if change > 0 and drawn.random() >= math.exp(-beta * change):
                continue
            plan[variable] = choice
            cost += change
            if cost < least:
                # Not the sum of changes, whose rounding errors add up.
                cost = self._problem.time(plan)
                if cost < least:
                    best, least, met = tuple(plan), cost, number
        return best

    def _change(self, plan: Sequence[int], variable: int, choice: int) -> float:
        """By how much a plan costs more with another choice of one variable."""
        before = plan[variable]
        change = self._own[variable][choice] - self._own[variable][before]
        for other in self._neighbours[variable]:
            column = plan[other.variable]
            change += float(other.time_s[choice, column]) - float(other.time_s[before, column])
        return change


def _able(problem: SearchProblem) -> list[list[int]]:
    """The choices of each variable that are not excluded."""
    able = [[i for i, time_s in enumerate(each.time_s.tolist()) if math.isfinite(time_s)] for each in problem.variables]
    without = [each.name for each, choices in zip(problem.variables, able, strict=True) if not choices]
    if without:
        raise NoPlanError(without)
    return able
