"""The programs of plans that a search has looked at, and what they tell of the parts of other plans.

Takes the costs of candidates and what gives a plan's program; keeps what each program communicates and computes by its
estimates, and corrects the costs of its candidates and neighbours by what it takes beyond their sum (`program_model`).
Partitioning takes a fraction of what compiling does, so a search looks at many programs before any plan runs.
Invariant: the same programs in the same order give the same corrections.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from alpa_cfp.costs import Work
from alpa_cfp.costs.communication import CollectiveKey
from alpa_cfp.select.candidate_costs import CandidateCosts, Choices
from alpa_cfp.select.planned_program import PlannedProgram
from alpa_cfp.select.program_model import ProgramModel
from alpa_cfp.spmd.module.hlo_module import HloModule

# By what share of what parts compute their programs may differ.
_FUSED = 0.05


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
        self._communicating, self._computing = ProgramModel(latency_s), ProgramModel(latency_s, share=_FUSED)

    def __contains__(self, choices: Choices) -> bool:
        return choices in self._programs

    def __iter__(self) -> Iterator[Choices]:
        return iter(self._programs)

    def look_at(self, choices: Choices) -> None:
        """Counts the work of the program of a plan, if that is known before it is compiled."""
        if self._planned is None or choices in self._programs:
            return
        program, parts = self._planned(choices), self._costs.parts_s(choices)
        self._programs[choices] = program
        if program.work is None:
            return
        communication_s = self._costs.communication.by_key(program.work.collectives)
        self._communication_s[choices] = communication_s
        difference_s = sum(communication_s.values()) - sum(parts.values())
        self._communicating.add(self._costs.parts(choices), difference_s)
        self._beyond_s[choices] = self._computed_beyond_s(choices, program.work)
        self._computing.add(self._costs.computing_parts(choices), self._beyond_s[choices])
        own_s, pairs_s = self._communicating.corrections()
        fused_s, pairs_fused_s = self._computing.corrections()
        self._costs.own_s, self._costs.fused_s = own_s, fused_s
        self._costs.pairs_s = {key: seconds + pairs_fused_s[key] for key, seconds in pairs_s.items()}

    def blocks(self, choices: Choices) -> int:
        """The number of blocks that were partitioned to look at a plan."""
        return self._programs[choices].blocks

    def whole(self, choices: Choices) -> HloModule | None:
        """The partitioned program of a plan, if it was looked at whole."""
        return self._programs[choices].whole if choices in self._programs else None

    def is_known(self, choices: Choices) -> bool:
        """Whether the work of a plan's program is known."""
        return choices in self._communication_s

    def communication_s(self, choices: Choices) -> Mapping[CollectiveKey, float]:
        """The estimates of a plan's collectives: those of its program if that is known, else of its parts."""
        known = self._communication_s.get(choices)
        return self._costs.parts_s(choices) if known is None else known

    def beyond_s(self, choices: Choices) -> float:
        """What a plan's program computes beyond its parts, as estimated; 0 if it is not known."""
        return self._beyond_s.get(choices, 0.0)

    def _computed_beyond_s(self, choices: Choices, work: Work) -> float:
        """What a program computes and writes beyond its parts: less than 0 where XLA fuses what is written between."""
        parts, rates = [self._costs.candidates[number].work for number in self._costs.of(choices)], self._costs.rates
        flops, memory = sum(each.flops for each in parts), sum(each.memory_bytes for each in parts)
        return (work.flops - flops) / rates.flops_per_s + (work.memory_bytes - memory) / rates.bytes_per_s
