"""A real browser draws the report: every block is there, its script ran to the end, and nothing failed."""

import re
import subprocess
from pathlib import Path

import pytest

from alpa_cfp.plan.plan_report import PlanReport
from alpa_cfp.report.html_page import html_page
from unit.alpa_cfp.report.devtools import BROWSER, FLAGS, LIMIT_S, NO_BROWSER
from unit.alpa_cfp.report.reports import gpt, hostile, plan_of

pytestmark = pytest.mark.skipif(BROWSER is None, reason=NO_BROWSER)


def drawn(report: PlanReport | None, folder: Path, fragment: str = "") -> str:
    """The page as the browser has it when its script has run."""
    page = folder / "plan.html"
    page.write_text(html_page(plan_of(report)), encoding="utf-8")
    profile = f"--user-data-dir={folder / 'profile'}"
    command = [str(BROWSER), *FLAGS, profile, "--dump-dom", f"{page.as_uri()}{fragment}"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    return ran.stdout


def test_all_blocks_of_a_deep_model_are_drawn_without_error(tmp_path: Path) -> None:
    report = gpt(24)
    page = drawn(report, tmp_path, "#block-1-2")
    (root,) = re.findall(r"<html[^>]*>", page)
    assert f'data-drawn="{len(report.blocks)}"' in root
    assert "data-error" not in root
    # What only the script adds: a tooltip, and the block that the address names is open.
    assert 'id="tip"' in page
    (target,) = re.findall(r'<details[^>]*id="block-1-2"[^>]*>', page)
    assert " open" in target


def test_hostile_names_do_not_keep_the_page_from_being_drawn(tmp_path: Path) -> None:
    report = hostile()
    (root,) = re.findall(r"<html[^>]*>", drawn(report, tmp_path))
    assert f'data-drawn="{len(report.blocks)}"' in root
    assert "data-error" not in root
