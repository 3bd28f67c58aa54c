"""What all errors of this package have in common."""


class AlpaOnJaxError(Exception):
    """Base of all errors here, to catch them together."""


class InternalError(AlpaOnJaxError, RuntimeError):
    """Something that must hold does not: a mistake in this package, and never a wrong result instead."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. This is a mistake in alpa_on_jax, not in your program: please report it")
