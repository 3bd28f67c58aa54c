"""Keep Python's garbage collector out of what only builds up.

The analysis makes some hundred thousand small values that stay alive until it ends. Each time the collector runs it
looks at all of them again and finds nothing, so its share of the time grows with the program: without it the analysis
of a GPT with 96 layers takes 3.8 times as long as that of one with 24, and 4.5 times with it.
"""

import functools
import gc
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def without_collection(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """`function` with the collector paused while it runs; afterwards it is as it was."""

    @functools.wraps(function)
    def paused(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return function(*args, **kwargs)
        finally:
            if was_enabled:
                gc.enable()

    return paused
