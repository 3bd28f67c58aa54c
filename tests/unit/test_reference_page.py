"""docs/reference.md says what the docstrings and the commands say, and has every name of the public API."""

import subprocess
import sys
from pathlib import Path

import pytest

import alpa_cfp

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference.md"


def test_the_page_agrees_with_the_docstrings_and_the_help_of_the_commands(tmp_path: Path) -> None:
    page = tmp_path / "reference.md"
    command = [sys.executable, str(ROOT / "tools" / "reference_page.py"), str(page)]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    # By words: Python 3.13 wraps the usage of a command at other places.
    assert page.read_text().split() == PAGE.read_text().split(), "run: make reference"


def test_the_page_has_each_name_that_the_package_exports() -> None:
    headings = [line for line in PAGE.read_text().splitlines() if line.startswith("### ")]
    assert [name for name in alpa_cfp.__all__ if f"### `{name}`" not in headings] == []
