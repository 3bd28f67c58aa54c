"""What all errors of this package have in common."""

from typing import Any


class AlpaOnJaxError(Exception):
    """Base of all errors here, to catch them together. They can be sent to other processes."""

    def __reduce__(self) -> tuple[Any, ...]:
        # By what they say: most are made of something else, which is not kept.
        return _said, (type(self), self.args)


def _said(kind: type[AlpaOnJaxError], args: tuple[Any, ...]) -> AlpaOnJaxError:
    error = kind.__new__(kind, *args)
    error.args = args
    return error


class InternalError(AlpaOnJaxError, RuntimeError):
    """Something that must hold does not: a mistake in this package, and never a wrong result instead."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. This is a mistake in alpa_on_jax, not in your program: please report it")


class DataFileError(AlpaOnJaxError, ValueError):
    """A file of data names something that would run code."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"a file of a checkpoint or of results names {name}, which none of alpa's formats has; nothing of it was "
            "run. It was written by something else, or to do harm: take only files that you trust"
        )
