"""Results say how they were made, in words that hold on any machine."""

import pytest

from benchmarks import machine


@pytest.mark.parametrize(
    ("argument", "shown"),
    [("/home/someone/checkouts/old", "old"), ("--before=/home/someone/old", "--before=old"), ("7B/16384@h100", None)],
)
def test_a_path_of_one_machine_is_named_by_its_last_part(argument: str, shown: str | None) -> None:
    assert machine.shown(argument) == (argument if shown is None else shown)
