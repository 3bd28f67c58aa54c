"""tools/public_programs.py: what differs by more than rounding is told, and no program's outcome is lost."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tools.public_page import section
from tools.public_steps import comparing

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
REFERENCE = {"weights": jnp.array([1.0, -4.0]), "count": jnp.int32(3), "key": jax.random.key(0)}
OUTCOME: dict[str, Any] = {
    "program": "lm1b",
    "mesh": "2x4",
    "method": "autoshard",
    "status": "equal",
    "phase": "done",
    "reason": "",
    "commit": "0123456789abcdef",
    "costs": "measure",
    "loss_deviation": 1e-7,
    "state_deviation": 2e-6,
    "control_deviation": 3e-6,
    "planning_s": 30.0,
    "jit_s": 10.0,
    "step_ratio": 0.9,
}


@pytest.mark.parametrize(
    ("changed", "path"),
    [
        ({"weights": jnp.array([1.0, -4.1])}, "['weights']"),
        ({"weights": jnp.array([1.0, jnp.nan])}, "['weights']"),
        ({"weights": jnp.array([1.0, -4.0], jnp.bfloat16)}, "['weights']"),
        ({"count": jnp.int32(4)}, "['count']"),
        ({"key": jax.random.key(1)}, "['key']"),
    ],
)
def test_what_no_control_moves_has_to_agree(changed: dict[str, Any], path: str) -> None:
    assert comparing.compared(REFERENCE | changed, REFERENCE, [REFERENCE]).beyond == path
    assert comparing.compared(REFERENCE, REFERENCE, [REFERENCE]).beyond == ""


def test_another_structure_is_a_difference() -> None:
    assert comparing.compared({"weights": REFERENCE["weights"]}, REFERENCE, []).beyond


def test_what_rounding_alone_moves_may_deviate_as_far() -> None:
    """Adam's step of a gradient that is zero but for rounding."""
    own, control = {"x": jnp.array([1e-3])}, {"x": jnp.array([-1e-3])}
    reference = {"x": jnp.array([0.9e-3])}
    assert comparing.compared(own, reference, [reference]).beyond == "['x']"
    assert comparing.compared(own, reference, [control]).beyond == ""


def test_arguments_change_in_the_last_bit_alone() -> None:
    arguments = {"x": np.linspace(-1, 1, 1000, dtype=np.float32), "n": np.arange(3), "key": jax.random.key(0)}
    changed = comparing.in_the_last_bit(arguments, 0)
    assert 0 < comparing.deviation_of(changed, arguments)["['x']"] < 1e-6
    assert comparing.deviation_of(changed, arguments)["['n']"] == 0
    assert comparing.deviation_of(changed, arguments)["['key']"] == 0


def test_a_program_without_a_checkout_is_an_outcome_and_a_second_run_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "public_programs.py"), str(tmp_path)]
    command += ["--output", str(tmp_path / "results.json"), "--costs", "estimate"]
    for mesh in ("2", "4"):
        subprocess.run([*command, "--only", "nanodo", "--mesh", mesh], check=True, timeout=200, capture_output=True)
    before = (tmp_path / "results.json").read_text()
    outcomes = json.loads(before)["outcomes"]
    assert [(outcome["mesh"], outcome["status"], outcome["phase"]) for outcome in outcomes] == [
        ("2", "failed", "make"),
        ("4", "failed", "make"),
    ]
    assert "is the checkout of this repository there?" in outcomes[0]["reason"]
    subprocess.run([*command, "--only", "nanodo", "--mesh", "2"], check=True, timeout=200, capture_output=True)
    assert (tmp_path / "results.json").read_text() == before


def test_the_page_has_a_row_for_each_outcome_and_times_of_those_alone_that_were_measured() -> None:
    failed = OUTCOME | {"mesh": "8", "status": "timed_out", "phase": "plan", "reason": "late", "step_ratio": None}
    estimated = OUTCOME | {"mesh": "2x2x2", "costs": "estimate"}
    rows = section([OUTCOME, failed, estimated], {"lm1b": "google/flax"}).splitlines()[2:]
    assert rows[0].startswith("| `lm1b` (google/flax) | `01234567` | (2, 4) | `autoshard` | equal: loss 1e-07")
    assert rows[0].endswith("| 30 s | 3.0 | 0.90 |")
    assert "| (8,) |" in rows[1]
    assert "**timed out** (plan): late" in rows[1]
    assert rows[2].endswith("|  |  |  |")
    assert rows[-1].startswith("Of 1: planning takes 3.0 times a compile")
