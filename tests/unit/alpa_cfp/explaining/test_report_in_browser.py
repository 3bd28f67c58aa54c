"""A real browser draws the report: every block is there, its script ran to the end, and nothing failed."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from alpa_cfp.explaining.account import Account
from alpa_cfp.explaining.report import report
from unit.alpa_cfp.explaining.accounts import gpt, hostile, plan_of

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome-headless-shell")
BROWSER = next((path for name in NAMES if (path := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason=f"no browser: none of {', '.join(NAMES)} is on PATH")

# Enough for a machine that does other work; it takes two seconds on one that does not.
LIMIT_S = 90


def drawn(account: Account | None, folder: Path, fragment: str = "") -> str:
    """The page as the browser has it when its script has run."""
    page = folder / "plan.html"
    page.write_text(report(plan_of(account)), encoding="utf-8")
    command = [
        str(BROWSER),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--no-first-run",
        f"--user-data-dir={folder / 'profile'}",
        "--dump-dom",
        f"{page.as_uri()}{fragment}",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return ran.stdout


def test_all_blocks_of_a_deep_model_are_drawn_without_error(tmp_path: Path) -> None:
    account = gpt(24)
    page = drawn(account, tmp_path, "#block-1-2")
    (root,) = re.findall(r"<html[^>]*>", page)
    assert f'data-drawn="{len(account.blocks)}"' in root
    assert "data-error" not in root
    # What only the script adds: a tooltip, and the block that the address names is open.
    assert 'id="tip"' in page
    (target,) = re.findall(r'<details[^>]*id="block-1-2"[^>]*>', page)
    assert " open" in target


def test_hostile_names_do_not_keep_the_page_from_being_drawn(tmp_path: Path) -> None:
    account = hostile()
    (root,) = re.findall(r"<html[^>]*>", drawn(account, tmp_path))
    assert f'data-drawn="{len(account.blocks)}"' in root
    assert "data-error" not in root
