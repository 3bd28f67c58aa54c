"""Output that is read by another program, which may stop reading: `alpa-cfp profiles list | head -1`."""

import contextlib
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def reader_may_leave() -> Iterator[None]:
    """End the block, without an error, when whoever reads stdout has closed it."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout once more when it ends, and would complain.
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
