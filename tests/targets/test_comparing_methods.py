"""Methods are compared on devices that are not here, each compiled by their compiler."""

import json
from pathlib import Path

import pytest

from alpa_cfp.cli.main import main


def test_methods_are_compared_and_one_that_takes_too_long_costs_its_row(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Large enough that parameters, and not what a compiler needs beside them, decide what a device holds.
    words = f"bench --target {name} --model mlp --size batch=64 hidden=128 --methods data-parallel zero3 propagation"
    files = ["--json", str(tmp_path / "found.json"), "--database", str(tmp_path / "profiles.sqlite")]
    assert main([*words.split(), *files]) == 0
    printed = capsys.readouterr().out
    assert "order: " in printed
    rows = {row["method"]: row for row in json.loads((tmp_path / "found.json").read_text())["methods"]}
    assert list(rows) == ["data-parallel", "zero3", "propagation"]
    for row in rows.values():
        assert row["fits"]
        assert 0 < row["step_s"] < 1e-2
        assert len(row["scenarios_s"]) == 4
    assert rows["zero3"]["memory_bytes"] < rows["data-parallel"]["memory_bytes"]
    assert main([*words.split(), *files, "--limit-s", "0.001"]) == 1
    assert "propagation has no step: not done after 0.001 s" in capsys.readouterr().out
