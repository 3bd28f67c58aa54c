"""The entry point of `alpa-cfp`: parses the command line and runs the command.

Every command is a module of this package with `add_arguments(parser)` and `run(arguments) -> exit code`. It is imported
only if it is used, so that `alpa-cfp --help` needs neither jax nor alpa. Invariants: an error of the user gives one
line on stderr and exit code 2; Ctrl-C gives one line and 130, and keeps everything that was measured.
"""

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from alpa_cfp import __version__
from alpa_cfp.cli.process import UserError, lost_interrupts_come_again, reader_may_leave

# In the order of the help text.
COMMANDS = {
    "bench": "compare CFP with Alpa's ILP and plans written by hand: plan, check against the serial run, time",
    "plan": "plan one of the bench's models, or a function of your own, on a mesh, and save the plan",
    "explain": "say what a plan decided, block by block, why, and what it costs",
    "diff": "say in what two plans differ",
    "profiles": "list, show, export, import, merge and prune measured profiles",
    "doctor": "check versions, devices, database and Ray, with the fix for what is wrong",
}
WRONG_USE, INTERRUPTED = 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `alpa-cfp`.

    Args:
        argv: The arguments; None for those of this process.

    Returns:
        The exit code.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    # Only this command is imported; for the help text of `alpa-cfp` itself, none is.
    named = next((word for word in given if not word.startswith("-")), None)
    try:
        with reader_may_leave(), lost_interrupts_come_again():
            arguments = _parser(named).parse_args(given)
            return arguments.run(arguments)
        return 0
    except KeyboardInterrupt:
        print("alpa-cfp: interrupted; what was measured so far is kept", file=sys.stderr)
        if argv is None:
            _end_at_once(INTERRUPTED)
        return INTERRUPTED
    except _user_errors() as error:
        print(f"alpa-cfp {named}: {' '.join(_message(error).split())}", file=sys.stderr)
        return WRONG_USE


def _end_at_once(code: int) -> NoReturn:
    """Ends the process of the command without Python's finalization.

    All own files are closed by now. JAX, interrupted within a computation, often crashes during finalization (seen with
    jax 0.10.2: SIGSEGV instead of the exit code).
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def _parser(named: str | None) -> argparse.ArgumentParser:
    """The parser, with the arguments of the command `named`."""
    parser = argparse.ArgumentParser(
        prog="alpa-cfp", description="Automatic intra-operator parallelism for JAX by CFP."
    )
    parser.add_argument("--version", action="version", version=f"alpa-cfp {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, words in COMMANDS.items():
        command = commands.add_parser(name, help=words, description=f"{words[0].upper()}{words[1:]}.")
        if name == named:
            module = importlib.import_module(f"alpa_cfp.cli.{name}")
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser


def _user_errors() -> tuple[type[Exception], ...]:
    from alpa_cfp.database import ProfileDatabaseError
    from alpa_cfp.errors import CFPError
    from alpa_on_jax.errors import AlpaOnJaxError

    return (UserError, CFPError, ProfileDatabaseError, AlpaOnJaxError, OSError)


def _message(error: Exception) -> str:
    # Python's own text begins with the error number.
    if type(error).__module__ == "builtins" and isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


if __name__ == "__main__":
    sys.exit(main())
