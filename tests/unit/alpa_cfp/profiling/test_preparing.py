"""Programs are prepared in the background, one call at a time, and none once that has settled."""

import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from alpa_cfp.errors import ProfilingError
from alpa_cfp.profiling.preparing import Preparation
from alpa_cfp.spmd.module.hlo_module import HloModule


class Preparer:
    """Notes what it prepares; each call goes on until it may end."""

    def __init__(self, *, fails: bool = False) -> None:
        self.calls: list[list[Any]] = []
        self.begins, self.may_end = threading.Semaphore(0), threading.Semaphore(0)
        self.fails = fails

    def __call__(self, modules: Sequence[HloModule]) -> None:
        self.calls.append(list(modules))
        self.begins.release()
        self.may_end.acquire()
        if self.fails:
            raise ProfilingError("it cannot be prepared")


def modules(*names: str) -> list[HloModule]:
    """What stands for modules here."""
    return cast("list[HloModule]", list(names))


def begun(preparer: Preparer) -> Preparation:
    """A preparation that is at its first call."""
    preparation = Preparation(preparer)
    preparation.add(modules("first"))
    preparer.begins.acquire()
    return preparation


def test_nothing_is_prepared_if_nothing_is_added() -> None:
    preparer = Preparer()
    preparation = Preparation(preparer)
    preparation.add([])
    preparation.settle()
    assert preparer.calls == []


def test_what_is_added_meanwhile_is_prepared_together_afterwards() -> None:
    preparer = Preparer()
    preparation = begun(preparer)
    preparation.add(modules("second"))
    preparation.add(modules("third", "fourth"))
    preparer.may_end.release(2)
    preparer.begins.acquire()
    preparation.settle()
    assert preparer.calls == [["first"], ["second", "third", "fourth"]]


def test_what_has_not_begun_when_it_settles_is_not_prepared() -> None:
    preparer = Preparer()
    preparation = begun(preparer)
    preparation.add(modules("second"))
    threading.Timer(0.2, preparer.may_end.release).start()
    preparation.settle()
    assert preparer.calls == [["first"]]


@pytest.mark.parametrize("fails", [False, True])
def test_more_can_be_added_after_it_has_settled(fails: bool) -> None:
    preparer = Preparer(fails=fails)
    preparation = Preparation(preparer)
    for name in ("first", "second"):
        preparation.add(modules(name))
        preparer.begins.acquire()
        preparer.may_end.release()
        preparation.settle()
    assert preparer.calls == [["first"], ["second"]]
