"""Programs for a target are compiled once each, several at a time; one that cannot be compiled costs itself only."""

import random
from collections.abc import Callable

import jax

from alpa_cfp.database import Profile
from alpa_cfp.profiling.process.protocol import CompileTask, Finished, MeasureTask, Task
from alpa_cfp.profiling.targets.tasks import do_task
from alpa_cfp.select.communication import communication_programs
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import Collective
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.targets.modelled_program import ModelledProgram
from alpa_cfp.targets.timeline import Timeline

MODULES = tuple(each.as_serialized_hlo_module_proto() for each in communication_programs(LogicalMesh((2,)))[:3])
NOTHING = Timeline(0.0, 0.0, 0.0, 0.0, 0.0, ())


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
        return ModelledProgram(number + 1.0, NOTHING, 10, 20, 5, 30, sums, False)


def done(
    task: Task, compiler: Callable[[HloModule], ModelledProgram], profiles: dict[bytes, Profile]
) -> list[Finished]:
    return list(do_task(task, compiler, 2, profiles, lambda *_: None))


def compiled_and_timed(compiler: Compiler, modules: tuple[bytes, ...] = MODULES) -> list[Finished]:
    profiles: dict[bytes, Profile] = {}
    events = done(CompileTask(modules), compiler, profiles)
    return [*events, *done(MeasureTask(modules, 1, random.Random(0)), compiler, profiles)]


def test_each_program_is_compiled_once_and_has_one_sample() -> None:
    compiler = Compiler()
    found = compiled_and_timed(compiler)
    assert [(each.index, each.profile.samples_s) for each in found] == [(0, (1.0,)), (1, (2.0,)), (2, (3.0,))]
    assert compiler.compiled == len(MODULES)


def test_memory_and_collectives_are_those_of_the_program() -> None:
    profile = compiled_and_timed(Compiler())[0].profile
    assert profile.memory_bytes == 10 + 20 - 5 + 30
    assert [(each.kind, each.count) for each in profile.collectives] == [("all-reduce", 2)]


def test_a_program_that_the_compiler_refuses_has_the_reason_and_others_have_their_profiles() -> None:
    profiles: dict[bytes, Profile] = {}
    (failure,) = done(CompileTask(MODULES), Compiler(refused=1), profiles)
    assert (failure.index, failure.profile.failure) == (1, "out_of_memory")
    assert set(profiles) == {MODULES[0], MODULES[2]}


def test_a_program_that_is_compiled_alone_is_compiled_too() -> None:
    profiles: dict[bytes, Profile] = {}
    done(CompileTask(MODULES, alone=(1,)), Compiler(), profiles)
    assert set(profiles) == set(MODULES)
