"""Each caveat is logged once and kept once; those that may cost something come first."""

import logging

import pytest

from alpa_cfp.plan.caveats import Caveats


def test_each_caveat_is_kept_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caveats = Caveats()
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            caveats.note("a plan was not compared")
            caveats.warn("a rate is a guess")
    assert [caveat.text for caveat in caveats.all] == ["a rate is a guess", "a plan was not compared"]
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "CFP: a plan was not compared"),
        ("WARNING", "CFP: a rate is a guess"),
    ]


def test_an_earlier_caveat_is_not_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    first = Caveats()
    first.warn("a rate is a guess")
    caplog.clear()
    again = Caveats(first.all)
    again.warn("a rate is a guess")
    assert not caplog.records
    assert again.all == first.all
