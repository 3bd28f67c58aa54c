"""The programs that users are shown run as they stand: those under examples/, and the one in the README."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with `arguments` outside the checkout."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=Path(sys.executable).parent, capture_output=True, text=True, check=False
    )


def test_the_gpt_example_equals_the_serial_run_at_each_step() -> None:
    result = run(str(ROOT / "examples" / "gpt_step.py"), "--steps", "2")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "every step equals the serial run" in result.stdout


def test_the_plain_jax_example_equals_jax_jit_at_each_step() -> None:
    result = run(str(ROOT / "examples" / "plain_jax.py"))
    assert result.returncode == 0, result.stdout + result.stderr
    assert "every step equals jax.jit" in result.stdout


def test_the_program_in_the_readme_computes_its_training_step() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 1
    # loss = mean((x w - y)^2) over 16 x 64 entries with x = y = 1, w = 0: each gradient is -2 / 64.
    result = run("-c", blocks[0] + "\nprint(weight.shape, float(weight.min()), float(weight.max()))")
    assert result.returncode == 0, result.stderr
    shape, low, high = result.stdout.splitlines()[-1].rsplit(maxsplit=2)
    assert shape == "(32, 64)"
    assert [float(low), float(high)] == pytest.approx([0.1 * 2 / 64] * 2, rel=1e-6)
