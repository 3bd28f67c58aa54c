"""The base class of all errors of this package."""

from alpa_cfp.spmd.errors import SpmdError

# All errors of this package, and of the compiler core below it, are caught together by this name.
AlpaOnJaxError = SpmdError


class DataFileError(AlpaOnJaxError, ValueError):
    """A file of data names something that would run code."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"a file of a checkpoint or of results names {name}, which none of alpa's formats has; nothing of it was "
            "run. It was written by something else, or to do harm: take only files that you trust"
        )
