"""The options that alpa sets for the passes of its forked compiler, for the time of one `with XlaPassContext(...)`.

The fork kept them in a C++ global. Here they are kept for each thread, so that programs can be compiled side by side.
So is the size of the batch, which alpa knows and does not tell its passes.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from alpa_cfp.spmd.module.combiner_limits import SCATTERED_TOGETHER_BYTES, UNLIMITED_BYTES, CombinerLimits

_current = threading.local()
_batch_sizes: ContextVar[frozenset[int] | None] = ContextVar("batch_sizes", default=None)


def set_pass_context(options: Mapping[str, Any]) -> None:
    """Set the options for this thread."""
    _current.options = dict(options)


def clear_pass_context() -> None:
    """Forget this thread's options."""
    _current.options = {}


def get_option(name: str, default: Any = None) -> Any:
    """One of the options that are set, such as "auto_sharding::enable"."""
    return getattr(_current, "options", {}).get(name, default)


@contextmanager
def known_batch_sizes(sizes: Iterable[int]) -> Iterator[None]:
    """Tell the passes which sizes the batch dims of the arguments have, those of one micro-batch."""
    token = _batch_sizes.set(frozenset(sizes))
    try:
        yield
    finally:
        _batch_sizes.reset(token)


def get_batch_sizes() -> frozenset[int] | None:
    """The sizes given to `known_batch_sizes`; None if there are none."""
    return _batch_sizes.get()


def limits_of_pass_context() -> CombinerLimits:
    """The limits that alpa has set for what it compiles; none where it has set none."""
    return CombinerLimits(
        int(get_option("combiner::all_gather_threshold", UNLIMITED_BYTES)),
        int(get_option("combiner::all_reduce_threshold", UNLIMITED_BYTES)),
        SCATTERED_TOGETHER_BYTES,
    )
