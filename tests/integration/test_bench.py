"""`alpa-cfp bench` as a user runs it: a process of its own, which makes its devices itself."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

METHODS = ["cfp", "alpa-ilp", "propagation"]
CODE = "import sys; from alpa_cfp.cli.main import main; sys.exit(main())"

pytestmark = pytest.mark.slow


def test_three_methods_are_planned_checked_timed_and_kept(tmp_path: Path) -> None:
    kept, picture, plan = tmp_path / "result.json", tmp_path / "result.png", tmp_path / "plan.json"
    words = "bench --model mlp --size tiny hidden=16 --mesh 1x2 --rounds 2 --copies 1 --database profiles.sqlite"
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    result = subprocess.run(
        [sys.executable, "-c", CODE, *words.split(), "--methods", *METHODS, "--json", str(kept), "--picture",
         str(picture), "--save-plan", str(plan)],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
    assert "3 of 3 methods give the serial run's loss and state" in result.stdout
    content = json.loads(kept.read_text())
    assert list(content["methods"]) == METHODS
    assert content["machine"]["devices"] == "2 x cpu"
    assert content["profiled"] > 0
    assert all(method["is_right"] and method["step"]["samples"] == 2 for method in content["methods"].values())
    assert content["methods"]["cfp"]["predicted_ms"] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert json.loads(plan.read_text())["mesh_shape"] == [1, 2]
    # Each thing that begins is a line, since stderr is no terminal; and no bar.
    assert "planning cfp\n" in result.stderr
    assert "%|" not in result.stderr
