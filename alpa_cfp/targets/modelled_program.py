"""One program on a target: compiled by the target's compiler, its step modelled from the schedule.

Takes a partitioned module, a target and its devices (`topology`); gives memory by the compiler and seconds by the
model of what computes (`computing`) and of the links (`interconnect`). Invariant: nothing runs, and the same program
has the same seconds.
"""

from dataclasses import dataclass
from functools import partial

from alpa_cfp.spmd.compile.aliases import with_aliases
from alpa_cfp.spmd.compile.collectives import collectives_of_hlo
from alpa_cfp.spmd.compile.devices import Devices
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import Collective, partition_to_run
from alpa_cfp.spmd.partition.grad_sync import grad_sync_bytecode, unreduced_results
from alpa_cfp.targets.computing import computing_work, copying_s
from alpa_cfp.targets.hlo_text import read_scheduled
from alpa_cfp.targets.interconnect import collective_s
from alpa_cfp.targets.links import interconnect_of
from alpa_cfp.targets.target import Target
from alpa_cfp.targets.timeline import CollectiveOp, Timeline, walk
from alpa_cfp.targets.topology import Compiled, compile_for

# The number of the model: another one for each change by which a program gets other seconds.
MODEL = 1


@dataclass(frozen=True, slots=True)
class ModelledProgram:
    """A program on a target.

    Attributes:
        step_s: Seconds of a run, by the model.
        timeline: What computes and communicates when; without the sum of gradients once a step.
        argument_bytes, output_bytes, aliased_bytes, temporary_bytes: Memory of one device by the compiler; aliased are
            those of outputs that are in the arguments' place.
        collectives: The collectives of a run.
        is_read: Whether they were read from the compiled program, because the compiler has partitioned it.
        compiled: What the compiler made: the program and, where there is one, the sum of gradients once a step.
    """

    step_s: float
    timeline: Timeline
    argument_bytes: int
    output_bytes: int
    aliased_bytes: int
    temporary_bytes: int
    collectives: tuple[Collective, ...]
    is_read: bool
    compiled: tuple[Compiled, ...] = ()


def modelled_program(module: HloModule, target: Target, devices: Devices) -> ModelledProgram:
    """Compiles a program and models it.

    Args:
        module: A module; it is partitioned if it only is annotated.
        target: The target.
        devices: Its devices (`topology.devices_of`).

    Raises:
        jax.errors.JaxRuntimeError: it cannot be compiled.
        CFPError: the compiled program has something that no model has seconds for.
    """
    program = module.partitioned if module.partitioned is not None else partition_to_run(module)
    devices = devices[: program.mesh.num_devices]
    replicas = program.partitioner == "shardy"
    # The collectives that were chosen are combined already.
    combines = not (module.solved and replicas)
    compiled = compile_for(
        with_aliases(module, program), devices, one_program_per_device=replicas, combine_sums=combines
    )
    timeline = timeline_of(compiled, target, program.mesh.num_devices)
    step_s, once = timeline.step_s, tuple[Compiled, ...]()
    if unreduced_results(program):
        bytecode = grad_sync_bytecode(program, module.shape.results)
        once = (compile_for(bytecode, devices, one_program_per_device=True),)
        step_s += timeline_of(once[0], target, program.mesh.num_devices).step_s
    return ModelledProgram(
        step_s,
        timeline,
        compiled.argument_bytes,
        compiled.output_bytes,
        compiled.aliased_bytes,
        compiled.temporary_bytes,
        program.collectives if replicas else collectives_of_hlo(compiled.text),
        not replicas,
        (compiled, *once),
    )


def timeline_of(compiled: Compiled, target: Target, num_devices: int) -> Timeline:
    """The step of a compiled program.

    Args:
        compiled: The program.
        target: What it was compiled for.
        num_devices: How many devices run it.

    Raises:
        CFPError: see `modelled_program`.
    """
    links, chip = interconnect_of(target), target.chip

    def communicating_s(op: CollectiveOp) -> float:
        return collective_s(op.kind, op.operand_bytes, op.groups, links)

    module = read_scheduled(compiled.text)
    return walk(module, partial(computing_work, chip=chip), communicating_s, partial(copying_s, chip=chip))
