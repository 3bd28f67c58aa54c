"""docs/compatibility.md says what is so: its list of what is replaced in alpa is the list that `alpa_on_jax` keeps."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "compatibility.md"


def test_the_page_lists_exactly_the_names_that_are_replaced(tmp_path: Path) -> None:
    # In a process of its own, where nothing but the page's own tool has imported alpa.
    page = tmp_path / "compatibility.md"
    page.write_text(PAGE.read_text())
    command = [sys.executable, str(ROOT / "tools" / "compatibility_page.py"), str(page)]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    assert page.read_text() == PAGE.read_text(), "run: python tools/compatibility_page.py docs/compatibility.md"
