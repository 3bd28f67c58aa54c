"""`alpa-cfp diff`: compares two plans as text or JSON. It needs neither the programs nor devices."""

import argparse
import json

EPILOG = """\
A and B are files that plan.save(...) or `alpa-cfp plan` wrote. The exit code is 0, whether they differ or not.

examples:
  alpa-cfp diff before.json after.json
  alpa-cfp diff before.json after.json --json        the same as JSON
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `alpa-cfp diff`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("a", metavar="A", help="the file of a plan")
    parser.add_argument("b", metavar="B", help="the file of the plan that is compared with it")
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Runs `alpa-cfp diff`."""
    from alpa_cfp.plan.plan import Plan
    from alpa_cfp.report.comparing import diff
    from alpa_cfp.report.content import of_difference

    a, b = Plan.load(arguments.a), Plan.load(arguments.b)
    if arguments.json:
        print(json.dumps(of_difference(a, b), indent=1))
    else:
        print(diff(a, b), end="")
    return 0
