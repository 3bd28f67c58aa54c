"""The options that alpa sets for the passes of its forked compiler, for the time of one `with XlaPassContext(...)`.

The fork kept them in a C++ global. Here they are kept for each thread, so that programs can be compiled side by side.
"""

import threading
from collections.abc import Mapping
from typing import Any

_current = threading.local()


def set_pass_context(options: Mapping[str, Any]) -> None:
    """Set the options for this thread."""
    _current.options = dict(options)


def clear_pass_context() -> None:
    """Forget this thread's options."""
    _current.options = {}


def get_option(name: str, default: Any = None) -> Any:
    """One of the options that are set, such as "auto_sharding::enable"."""
    return getattr(_current, "options", {}).get(name, default)
