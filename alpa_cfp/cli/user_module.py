"""What a command line names in a module of the user's own: MODULE:NAME.

The module is imported from the current folder, or as Python finds it; whatever goes wrong there is one line of text.
"""

import importlib
import re
import sys
import traceback
from pathlib import Path
from typing import Any

from alpa_cfp.cli.process import UserError, interrupted_afterwards

FORM = "MODULE:NAME, such as my_module:train_step"


def read_path(text: str, what: str) -> tuple[str, str]:
    """Returns the module and the name in a text such as "my_module:train_step".

    Args:
        text: The text.
        what: Its name in errors.

    Raises:
        UserError: it is none.
    """
    found = re.fullmatch(r"([A-Za-z_][\w.]*):([A-Za-z_][\w.]*)", text)
    if found is None:
        raise UserError(f"{what} is {text!r}: it is to be written {FORM}")
    return found[1], found[2]


def attribute_of(text: str, path: tuple[str, str]) -> Any:
    """Returns what is named.

    Args:
        text: The text, for errors.
        path: The module and the name, which may have dots.

    Raises:
        UserError: there is no such module, or it cannot be imported, or has no such name.
    """
    module_name, name = path
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with interrupted_afterwards():
            found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise UserError(f"{text}: there is no module {module_name!r} in {here}, nor among the packages") from error
        raise UserError(f"{module_name} cannot be imported: {said(error)}") from error
    except Exception as error:
        raise UserError(f"{module_name} cannot be imported: {said(error)}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise UserError(f"{text}: there is nothing called {name!r} in {module_name}")
        found = getattr(found, part)
    return found


def said(error: Exception) -> str:
    """Returns an error in words, with the line of the user's file that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"
