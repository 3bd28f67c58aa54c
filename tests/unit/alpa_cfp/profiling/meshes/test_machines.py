"""On each machine one times at once; nobody waits for ever for machines."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from alpa_cfp.profiling.meshes import machines
from alpa_cfp.profiling.meshes.machines import Machines, StoppedError, Use, this_machine

_DEADLINE_S = 20.0


@pytest.fixture
def threads() -> Iterator[list[threading.Thread]]:
    started: list[threading.Thread] = []
    yield started
    for thread in started:
        thread.join(_DEADLINE_S)
        assert not thread.is_alive()


def asking(of: Machines, use: Use, names: str, threads: list[threading.Thread]) -> threading.Event:
    """Set as soon as another thread has these machines for that."""
    has = threading.Event()

    def ask() -> None:
        with of.reserved(use, names):
            has.set()

    threads.append(threading.Thread(target=ask))
    threads[-1].start()
    return has


@pytest.mark.parametrize(
    ("times_alone", "one", "other", "at_once"),
    [
        (True, "compile", "compile", True),
        (True, "time", "compile", False),
        (True, "compile", "time", False),
        (True, "time", "time", False),
        (False, "time", "compile", True),
        (False, "time", "time", False),
    ],
)
def test_a_machine_is_shared_by_what_does_not_disturb(
    threads: list[threading.Thread], *, times_alone: bool, one: Use, other: Use, at_once: bool
) -> None:
    shared = Machines(times_alone=times_alone)
    with shared.reserved(one, "a"):
        has = asking(shared, other, "ab", threads)
        assert asking(shared, "time", "c", threads).wait(_DEADLINE_S)
        assert has.wait(_DEADLINE_S if at_once else 0.05) == at_once
    assert has.wait(_DEADLINE_S)


def test_who_times_is_not_passed_for_ever_by_who_compiles(threads: list[threading.Thread]) -> None:
    shared = Machines(times_alone=True)
    with shared.reserved("compile", "a"):
        timing = asking(shared, "time", "a", threads)
        while len(shared._requests) < 2:
            threading.Event().wait(0.001)
        later = asking(shared, "compile", "a", threads)
        assert not later.wait(0.05)
        assert not timing.is_set()
    assert later.wait(_DEADLINE_S)


def test_who_is_to_stop_waits_no_longer_and_is_in_nobodys_way(threads: list[threading.Thread]) -> None:
    shared, stop = Machines(times_alone=True), threading.Event()
    stop.set()
    with shared.reserved("time", "a"):
        with pytest.raises(StoppedError), shared.reserved("time", "a", stop):
            raise AssertionError
        has = asking(shared, "time", "a", threads)
    assert has.wait(_DEADLINE_S)


def test_machines_are_given_back_after_an_error(threads: list[threading.Thread]) -> None:
    shared = Machines(times_alone=True)
    with pytest.raises(ZeroDivisionError), shared.reserved("time", "a"):
        _ = 1 / 0
    assert asking(shared, "time", "a", threads).wait(_DEADLINE_S)


def test_a_machine_is_the_same_one_each_time_also_where_there_is_no_linux(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert this_machine() == this_machine() != ""
    monkeypatch.setattr(machines, "BOOT_ID", tmp_path / "missing")
    assert this_machine() == this_machine() != ""
