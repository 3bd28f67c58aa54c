"""A planned step on a target: compiled by its compiler, and its seconds modelled, in the rankings' scenarios, too.

Takes a planned module, serialized, and a target; gives a `Modelled`. It is a function for a process of its own
(`apart`), as a compiler can end its process. Invariant: all methods are compiled and modelled alike, and nothing runs.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from alpa_cfp import target
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.targets.modelled_program import modelled_program
from alpa_cfp.targets.topology import devices_of
from alpa_cfp_bench.targets.case import TargetCase
from alpa_cfp_bench.targets.rankings import SCENARIOS, scaled_s


@dataclass(frozen=True, slots=True)
class Modelled:
    """A step as the target's compiler leaves it, and its seconds by the model.

    Attributes:
        step_s: Of a step.
        computing_s, communicating_s, hidden_s, copies_s: See `targets.timeline.Timeline`.
        memory_bytes: What a device needs, by the compiler.
        collectives: How many collectives run in a step.
        compile_s: Of the compiler, on this machine.
        scenarios_s: Seconds of a step in each of `rankings.SCENARIOS`.
    """

    step_s: float
    computing_s: float
    communicating_s: float
    hidden_s: float
    copies_s: float
    memory_bytes: int
    collectives: int
    compile_s: float
    scenarios_s: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As a benchmark's row has it."""
        return asdict(self)


def modelled(serialized: bytes, target_name: str) -> Modelled:
    """Compile a planned step for a target, and model it, in each scenario, too.

    Raises:
        jax.errors.JaxRuntimeError: it cannot be compiled.
        CFPError: see `targets.modelled_program`.
    """
    module, wanted = HloModule.from_serialized(serialized), target(target_name)
    program = modelled_program(module, wanted, devices_of(wanted))
    line, compiled = program.timeline, program.compiled
    scenarios_s = {name: scaled_s(compiled, wanted, factors) for name, factors in SCENARIOS.items()}
    return Modelled(
        program.step_s, line.computing_s, line.communicating_s, line.hidden_s, line.copies_s, compiled[0].total_bytes,
        len(program.collectives), sum(each.seconds for each in compiled), scenarios_s,
    )  # fmt: skip


def model_flops_utilisation(case: TargetCase, flops: float, step_s: float) -> float:
    """The part of the devices' peak that the step would be without rematerialisation."""
    wanted = target(case.target)
    rates = wanted.chip.flops_per_s
    # TPUs make float32 products from those of bfloat16.
    peak = rates.get(case.products_in, rates["bf16"])
    return flops / (step_s * wanted.num_devices * peak)
