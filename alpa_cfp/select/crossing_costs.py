"""What is between the blocks of a plan: estimates of its collectives, and the tables of the search problem.

Takes the crossings of a program's blocks and what collectives take on the mesh; gives what values cost that go from
block to block, by plan or for each two candidates. Invariant: in estimates, what is not moved takes no time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from alpa_cfp.costs import CommunicationCosts
from alpa_cfp.costs.communication import CollectiveKey
from alpa_cfp.search import ClassTable
from alpa_cfp.select.posterior import Corrections, PairKey
from alpa_cfp.select.search_problem import ReshardingEdge, resharding_by_key_s, resharding_s


@dataclass(frozen=True)
class CrossingCosts:
    """The costs of what is between the blocks of a program.

    Attributes:
        kinds: The kind of each block.
        crossings: The values that go from block to block.
        communication: What collectives take in a plan.
        micro_batches: The number of micro-batches of a step.
    """

    kinds: Sequence[int]
    crossings: Sequence[ReshardingEdge]
    communication: CommunicationCosts
    micro_batches: int
    _estimates: dict[tuple[int, ...], list[dict[CollectiveKey, float]]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def estimates(self, choices: tuple[int, ...]) -> list[dict[CollectiveKey, float]]:
        """For each crossing the estimates of its collectives in a plan, by kind and group size."""
        if choices not in self._estimates:
            self._estimates[choices] = [
                resharding_by_key_s(edge, choices, self.communication) for edge in self.crossings
            ]
        return self._estimates[choices]

    def total_s(self, choices: tuple[int, ...]) -> float:
        """The estimate of all collectives between the blocks of a plan."""
        return sum(sum(each.values()) for each in self.estimates(choices))

    def pairs(self, choices: tuple[int, ...]) -> list[PairKey]:
        """The key of the two neighbours at each crossing in a plan."""
        return [self.pair(edge, choices) for edge in self.crossings]

    def pair(self, edge: ReshardingEdge, choices: Sequence[int]) -> PairKey:
        """The key of two neighbours in a plan."""
        return self._kinds_of(edge), int(choices[edge.first]), int(choices[edge.second])

    def tables(self, known: Corrections, of_programs: Mapping[PairKey, float]) -> list[ClassTable]:
        """For each crossing what it takes in a step, for each pair of the candidates of its blocks.

        Args:
            known: The times that hold.
            of_programs: What neighbours communicate more in programs that were looked at.
        """
        found, in_programs, in_plans = list[ClassTable](), _by_kinds(of_programs), _by_kinds(known.pairs_s)
        for edge in self.crossings:
            kinds, table = self._kinds_of(edge), self.resharding_s(edge, known)
            # What is not moved takes no time, but what is computed next to a certain neighbour may take less.
            more = {(a, b): max(self.micro_batches * s, -table.at(a, b)) for a, b, s in in_programs.get(kinds, ())}
            for a, b, more_s in in_plans.get(kinds, ()):
                more[a, b] = more.get((a, b), 0.0) + self.micro_batches * more_s
            found.append(table.with_more(more))
        return found

    def resharding_s(self, edge: ReshardingEdge, known: Corrections) -> ClassTable:
        """What the collectives between two blocks take in a step, for each pair of their candidates."""
        return resharding_s(edge, self.communication, known.between_factor).scaled(self.micro_batches)

    def _kinds_of(self, edge: ReshardingEdge) -> tuple[int, int]:
        return self.kinds[edge.first], self.kinds[edge.second]


def _by_kinds(pairs_s: Mapping[PairKey, float]) -> dict[tuple[int, int], list[tuple[int, int, float]]]:
    """For the kinds of two blocks the choices of both, with their seconds."""
    found: dict[tuple[int, int], list[tuple[int, int, float]]] = {}
    for (kinds, a, b), seconds in pairs_s.items():
        found.setdefault(kinds, []).append((a, b, seconds))
    return found
