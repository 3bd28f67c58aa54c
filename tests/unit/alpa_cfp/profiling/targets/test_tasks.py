"""Programs for a target are compiled once each, several at a time; one that cannot be compiled costs itself only."""

import random
from collections.abc import Callable

import jax

from alpa_cfp.profiling.process.protocol import CompileTask, Finished, MeasureTask, Task
from alpa_cfp.profiling.targets.tasks import Compiled, do_task
from alpa_cfp.select.communication import communication_programs
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import Collective
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.targets.modelled_program import ModelledProgram
from alpa_cfp.targets.timeline import Entry, Timeline

MODULES = tuple(each.as_serialized_hlo_module_proto() for each in communication_programs(LogicalMesh((2,)))[:3])


def timeline(seconds: float) -> Timeline:
    return Timeline(seconds, seconds, 0.0, 0.0, 0.0, (Entry("k", "computing", 0.0, seconds, "kernel", 8),))


class Compiler:
    """Gives the n-th program n + 1 seconds; refuses those with a certain number."""

    def __init__(self, refused: int | None = None) -> None:
        self.compiled, self._refused = 0, refused

    def __call__(self, module: HloModule) -> ModelledProgram:
        number = MODULES.index(module.as_serialized_hlo_module_proto())
        self.compiled += 1
        if number == self._refused:
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: too large")
        sums = (Collective("all-reduce", 8, 2),) * 2
        return ModelledProgram(number + 1.0, timeline(number + 1.0), 10, 20, 5, 30, sums, False)


def done(task: Task, compiler: Callable[[HloModule], ModelledProgram], known: dict[bytes, Compiled]) -> list[Finished]:
    return list(do_task(task, compiler, 2, known, lambda *_: None))


def compiled_and_timed(compiler: Compiler, modules: tuple[bytes, ...] = MODULES) -> list[Finished]:
    known: dict[bytes, Compiled] = {}
    events = done(CompileTask(modules), compiler, known)
    return [*events, *done(MeasureTask(modules, 1, random.Random(0)), compiler, known)]


def test_each_program_is_compiled_once_and_has_one_sample() -> None:
    compiler = Compiler()
    found = compiled_and_timed(compiler)
    assert [(each.index, each.profile.samples_s) for each in found] == [(0, (1.0,)), (1, (2.0,)), (2, (3.0,))]
    assert compiler.compiled == len(MODULES)


def test_each_program_comes_with_its_timeline() -> None:
    found = [each.timeline for each in compiled_and_timed(Compiler())]
    assert [each and (each.step_s, each.entries[0].end_ns) for each in found] == [
        (1.0, 1_000_000_000), (2.0, 2_000_000_000), (3.0, 3_000_000_000),
    ]  # fmt: skip


def test_memory_and_collectives_are_those_of_the_program() -> None:
    profile = compiled_and_timed(Compiler())[0].profile
    assert profile.memory_bytes == 10 + 20 - 5 + 30
    assert [(each.kind, each.count) for each in profile.collectives] == [("all-reduce", 2)]


def test_a_program_that_the_compiler_refuses_has_the_reason_and_others_have_their_profiles() -> None:
    known: dict[bytes, Compiled] = {}
    (failure,) = done(CompileTask(MODULES), Compiler(refused=1), known)
    assert (failure.index, failure.profile.failure) == (1, "out_of_memory")
    assert set(known) == {MODULES[0], MODULES[2]}


def test_a_program_that_is_compiled_alone_is_compiled_too() -> None:
    known: dict[bytes, Compiled] = {}
    done(CompileTask(MODULES, alone=(1,)), Compiler(), known)
    assert set(known) == set(MODULES)
