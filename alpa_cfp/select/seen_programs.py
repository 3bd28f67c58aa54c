"""The programs of plans that a search has looked at, and what they tell of the parts of other plans.

Takes the costs of candidates and what gives a plan's program; keeps what each program is estimated to communicate and
to compute, and corrects the costs of all candidates by what programs take beyond the sum of their parts
(`program_model`). Partitioning takes a fraction of what compiling does, so a search looks at many programs before any
plan runs. Invariant: the same programs in the same order give the same corrections.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from alpa_cfp.candidates.candidate import Candidate
from alpa_cfp.costs import Rates, Work
from alpa_cfp.costs.communication import CollectiveKey
from alpa_cfp.select.candidate_costs import MOST_SAVED, CandidateCosts, Choices
from alpa_cfp.select.planned_program import PlannedProgram
from alpa_cfp.select.program_model import ProgramModel
from alpa_cfp.spmd.module.hlo_module import HloModule

# Standard deviations of what programs compute beyond their parts, relative to what these compute: of all candidates,
# and of each.
_ALL_FUSED, _FUSED = 0.1, 0.05


class SeenPrograms:
    """The programs of the plans of one program.

    Args:
        costs: The costs of its candidates, which are corrected.
        planned: Gives the program of a plan; None: nothing is known before it is compiled.
    """

    def __init__(self, costs: CandidateCosts, planned: Callable[[Sequence[int]], PlannedProgram] | None) -> None:
        self._costs, self._planned = costs, planned
        self._programs = dict[Choices, PlannedProgram]()
        self._communication_s = dict[Choices, Mapping[CollectiveKey, float]]()
        self._beyond_s = dict[Choices, float]()
        latency_s = costs.communication.rates.latency_s
        self._communicating, self._computing = ProgramModel(latency_s), ProgramModel(0.0, _FUSED, _ALL_FUSED)
        self._rates: Rates | None = None

    @property
    def is_blind(self) -> bool:
        """Whether no program is known before it is compiled."""
        return self._planned is None

    def __contains__(self, choices: Choices) -> bool:
        return choices in self._programs

    def __iter__(self) -> Iterator[Choices]:
        return iter(self._programs)

    def look_at(self, choices: Choices) -> None:
        """Counts the work of the program of a plan, if that is known before it is compiled."""
        if self._planned is None or choices in self._programs:
            return
        program, parts = self._planned(choices), self._costs.parts_s(choices)
        self._programs[choices], self._communication_s[choices] = program, parts
        if program.work is None:
            return
        communication_s = self._costs.communication.by_key(program.work.collectives)
        self._communication_s[choices] = communication_s
        self._communicating.add(self._costs.parts(choices), sum(communication_s.values()) - sum(parts.values()))
        self._costs.own_s, self._costs.pairs_s = self._communicating.corrections()
        candidates = [self._costs.candidates[number] for number in self._costs.of(choices)]
        if any(each.predicted or each.unread for each in candidates):  # their work is not what was measured
            return
        self._beyond_s[choices] = self._computed_beyond_s(choices, program.work, candidates)
        self._computing.add(self._computing_parts(choices), self._beyond_s[choices])
        self._costs.fused_s, _ = self._computing.corrections()
        self._costs.fused_share = self._computing.common_share()

    def blocks(self, choices: Choices) -> int:
        """The number of blocks that were partitioned to look at a plan."""
        return self._programs[choices].blocks

    def whole(self, choices: Choices) -> HloModule | None:
        """The partitioned program of a plan, if it was looked at whole."""
        return self._programs[choices].whole if choices in self._programs else None

    def communication_s(self, choices: Choices) -> Mapping[CollectiveKey, float]:
        """The estimates of a plan's collectives: those of its program if that is known, else of its parts."""
        known = self._communication_s.get(choices)
        return self._costs.parts_s(choices) if known is None else known

    def beyond_s(self, choices: Choices) -> float:
        """What a plan's program computes beyond its parts, as estimated; as others tell if it is not known."""
        known = self._beyond_s.get(choices)
        if known is not None:
            return known
        return sum(self._costs.beyond_s(number, seconds) for number, seconds in self._computing_parts(choices))

    def _computing_parts(self, choices: Choices) -> list[tuple[int, float]]:
        """The candidates of a plan, each with what it computes."""
        return [(number, float(self._costs.means.computing_s[number])) for number in self._costs.of(choices)]

    def _computed_beyond_s(self, choices: Choices, work: Work, candidates: Sequence[Candidate]) -> float:
        """What a program computes and writes beyond its parts: less than 0 where XLA fuses what is written between."""
        if self._rates is None:  # programs are compared by the same rates
            self._rates = self._costs.rates
        parts = [each.work for each in candidates]
        flops, memory = sum(each.flops for each in parts), sum(each.memory_bytes for each in parts)
        found = (work.flops - flops) / self._rates.flops_per_s
        found += (work.memory_bytes - memory) / self._rates.bytes_per_s
        return max(found, -MOST_SAVED * sum(seconds for _, seconds in self._computing_parts(choices)))
