"""Measure partitioned programs on the devices that they are meant for.

Takes modules with their partitioned programs; gives a profile for each, from the database where it has one. Programs
are compiled in groups and run interleaved, in an order drawn anew each round, since the speed of a machine drifts.
Every profile goes into the database as soon as its group has run, so a run that is broken off loses no finished one,
and one that is started again measures only what is missing. A program that cannot be compiled or run costs that
program only: its profile says why.
"""

import gc
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
from tqdm import tqdm

from alpa_cfp.database import Collective, Profile, ProfileDatabase, ProfileKey, utc_now
from alpa_cfp.profiling.keys import key_of
from alpa_on_jax.xla_extension.executable import Client, MeshExecutable
from alpa_on_jax.xla_extension.hlo_module import HloModule

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """How to measure.

    Attributes:
        samples: How often each program is timed, after one run that is not.
        group: How many programs are loaded at once and run interleaved.
        seed: Of the order.
        progress: Whether to show a progress bar.
    """

    samples: int = 7
    group: int = 8
    seed: int = 0
    progress: bool = True


@dataclass(slots=True)
class _Loaded:
    key: ProfileKey
    text: str
    module: HloModule
    executable: MeshExecutable
    run: Callable[[], None]
    compile_s: float
    samples_s: list[float]


def measure(
    modules: Sequence[HloModule],
    client: Client,
    database: ProfileDatabase,
    options: MeasureOptions = MeasureOptions(),
) -> list[Profile]:
    """The profile of each of `modules`; equal programs are measured once.

    Args:
        modules: Modules with their partitioned programs, for the mesh of `client`.
        client: The backend of the mesh.
        database: Where profiles come from and go to.
        options: See `MeasureOptions`.
    """
    devices = client.devices()
    keys = [key_of(module, devices) for module in modules]
    missing: dict[ProfileKey, tuple[str, HloModule]] = {}
    for (key, text), module in zip(keys, modules, strict=True):
        if not _is_measured(database.get(key), options.samples):
            missing.setdefault(key, (text, module))
    logger.info("profiling %d programs: %d are in the database", len(set(keys)), len(set(keys)) - len(missing))
    drawn = random.Random(options.seed)
    waiting = list(missing.items())
    with tqdm(total=len(waiting), desc="profiling", disable=not options.progress) as bar:
        for start in range(0, len(waiting), options.group):
            group = waiting[start : start + options.group]
            _measure_group(group, client, database, options.samples, drawn)
            bar.update(len(group))
    profiles = [database.get(key) for key, _ in keys]
    return [profile for profile in profiles if profile is not None]


def _is_measured(profile: Profile | None, samples: int) -> bool:
    """Whether nothing is missing; what has failed is not tried again."""
    return profile is not None and (profile.status == "failed" or len(profile.samples_s) >= samples)


def _measure_group(
    group: Sequence[tuple[ProfileKey, tuple[str, HloModule]]],
    client: Client,
    database: ProfileDatabase,
    samples: int,
    drawn: random.Random,
) -> None:
    loaded: list[_Loaded] = []
    for key, (text, module) in group:
        result = _load(key, text, module, client)
        if isinstance(result, Profile):
            database.put(key, result, program_text=text)
        else:
            loaded.append(result)
    gc.collect()  # not in the middle of a sample
    for _ in range(samples):
        drawn.shuffle(loaded)
        for program in list(loaded):
            try:
                started = time.perf_counter()
                program.run()
                program.samples_s.append(time.perf_counter() - started)
            except jax.errors.JaxRuntimeError as error:
                loaded.remove(program)
                database.put(program.key, _failed(error, "crashed"), program_text=program.text)
    for program in sorted(loaded, key=lambda each: each.key):
        database.put(program.key, _profile(program), program_text=program.text)
        program.executable.delete()


def _load(key: ProfileKey, text: str, module: HloModule, client: Client) -> _Loaded | Profile:
    """The program compiled, loaded and run once; or the profile that says why it could not be."""
    started = time.perf_counter()
    try:
        executable = MeshExecutable(client, module)
    except jax.errors.JaxRuntimeError as error:
        return _failed(error, "compile_failed")
    compile_s = time.perf_counter() - started
    try:
        run = executable.runner_with_dummy_inputs()
        run()
    except jax.errors.JaxRuntimeError as error:
        return _failed(error, "crashed")
    return _Loaded(key, text, module, executable, run, compile_s, [])


def _failed(error: Exception, kind: str) -> Profile:
    message = str(error)
    if "RESOURCE_EXHAUSTED" in message or "out of memory" in message.lower():
        kind = "out_of_memory"
    logger.warning("a program cannot be profiled (%s): %s", kind, message.partition("\n")[0])
    return Profile(status="failed", created_at=utc_now(), failure=kind, failure_message=message)  # pyright: ignore[reportArgumentType]


def _profile(program: _Loaded) -> Profile:
    sizes, work = program.executable.memory_bytes(), program.executable.cost_analysis()
    counts = Counter((each.kind, each.size_bytes, each.group_size) for each in program.executable.program.collectives)
    return Profile(
        status="measured",
        created_at=utc_now(),
        samples_s=tuple(program.samples_s),
        compile_s=program.compile_s,
        argument_bytes=sizes["arguments"],
        output_bytes=sizes["outputs"],
        aliased_bytes=sizes["aliased"],
        temporary_bytes=sizes["temporaries"],
        flops=work["flops"],
        bytes_accessed=work["bytes_accessed"],
        collectives=tuple(Collective(*what, count) for what, count in counts.items()),
    )
