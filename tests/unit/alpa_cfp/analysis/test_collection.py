"""The garbage collector is paused while a program is analysed, and afterwards it is as it was."""

import gc

import pytest

from alpa_cfp.analysis.collection import without_collection


@without_collection
def _enabled(error: Exception | None = None) -> bool:
    if error is not None:
        raise error
    return gc.isenabled()


def test_it_is_paused_and_runs_again() -> None:
    assert gc.isenabled()
    assert not _enabled()
    assert gc.isenabled()


def test_it_runs_again_after_an_error() -> None:
    with pytest.raises(ValueError, match="wrong"):
        _enabled(ValueError("wrong"))
    assert gc.isenabled()


def test_one_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        assert not _enabled()
        assert not gc.isenabled()
    finally:
        gc.enable()
