"""`alpa-cfp explain`: explains a plan as text, JSON or an HTML page. It needs neither the program nor devices."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from alpa_cfp.cli.files import check_are_different, check_can_write
from alpa_cfp.cli.process import UserError

if TYPE_CHECKING:
    from alpa_cfp.plan.plan import Plan

EPILOG = """\
PLAN is a file that plan.save(...) or `alpa-cfp plan` wrote.

examples:
  alpa-cfp explain plan.json                         the plan in words; equal layers are said once
  alpa-cfp explain plan.json --html plan.html        the same as one page for a browser, with pictures
  alpa-cfp explain plan.json --block intermediate/dense          one block, with all that it could have been
"""
# Number of names that an error lists.
_QUOTED = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `alpa-cfp explain`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("plan", metavar="PLAN", help="the file of a plan")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--html", metavar="FILE", help="write one HTML page into FILE (- for stdout)")
    form.add_argument("--json", action="store_true", help="print everything as one JSON object")
    parser.add_argument("--block", metavar="NAME", help="only blocks with NAME in their name, with all alternatives")
    parser.add_argument("--all", action="store_true", help="all alternatives of all blocks, not only the best three")


def run(arguments: argparse.Namespace) -> int:
    """Runs `alpa-cfp explain`."""
    from alpa_cfp.plan.plan import Plan
    from alpa_cfp.report.content import of_plan
    from alpa_cfp.report.text import explain

    page = None if arguments.html in (None, "-") else Path(arguments.html)
    if arguments.html and arguments.block:
        raise UserError("--html shows the whole plan: leave --block out, or leave --html out")
    check_are_different({"PLAN": Path(arguments.plan), "--html": page})
    check_can_write(page, "--html")
    plan = Plan.load(arguments.plan)
    if arguments.html:
        return _write(plan.report(), arguments.html)
    blocks = None if arguments.block is None else _named(plan, arguments.block, arguments.plan)
    if arguments.json:
        print(json.dumps(of_plan(plan, blocks=blocks), indent=1))
    else:
        print(explain(plan, blocks=blocks, everything=arguments.all or blocks is not None), end="")
    return 0


def _write(page: str, target: str) -> int:
    if target == "-":
        print(page, end="")
    else:
        Path(target).write_text(page, encoding="utf-8")
        print(f"wrote {target}")
    return 0


def _named(plan: "Plan", name: str, source: str) -> frozenset[int]:
    """The blocks with this name, or else with names that contain it."""
    if plan.account is None:
        raise UserError(f"--block: {source} has no report, so its blocks have no names; plan again and save the plan")
    names = [block.name for block in plan.account.blocks]
    found = [i for i, own in enumerate(names) if own == name] or [i for i, own in enumerate(names) if name in own]
    if not found:
        more = f" and {len(names) - _QUOTED} more" if len(names) > _QUOTED else ""
        raise UserError(f"--block: no block of {source} has {name!r} in its name: {', '.join(names[:_QUOTED])}{more}")
    return frozenset(found)
