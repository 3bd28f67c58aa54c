"""Errors in what a driver asks a host for and does not wait for.

The driver waits for hardly any call, so that an error in one would be lost: it is kept, and answers the next call that
misses what the failed one should have made, or that waits for the host. Since when a call has been running is kept too.
Invariant: an error that was told once is not the answer to a wait for something else.
"""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from alpa_on_jax import errors


@dataclass(frozen=True, slots=True)
class Health:
    """How a host is.

    Attributes:
        seconds_in_call: For how long the call that runs has been running; 0 if there is none.
        failed: An error that nobody has heard of yet.
    """

    seconds_in_call: float
    failed: str | None


class KeepsErrors:
    """What a host keeps of the calls that it was asked for.

    Args:
        host_id: The host's number.
    """

    def __init__(self, host_id: int):
        self._of_host = host_id
        self._error: Exception | None = None
        self._is_told = True
        self._called_at: float | None = None

    def health(self) -> Health:
        """How the host is, now."""
        since = self._called_at
        seconds = 0.0 if since is None else time.monotonic() - since
        return Health(seconds, None if self._is_told else str(self._told_as()))

    def raise_kept(self) -> None:
        """Tell an error that nobody has heard of yet.

        Raises:
            Exception: that.
        """
        if not self._is_told:
            raise self._told()

    def _keep(self, error: Exception) -> None:
        # Something that is missing is a consequence of an earlier error, if there was one.
        if not (isinstance(error, KeyError) and self._error is not None):
            self._error, self._is_told = error, False

    def _told(self) -> Exception:
        """The error that is kept, which is told now."""
        self._is_told = True
        return self._told_as()

    def _told_as(self) -> Exception:
        error = self._error
        if isinstance(error, errors.AlpaOnJaxError):
            return error
        return errors.HostError.of(self._of_host, error)


def keeps_error(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that the driver does not wait for: what it raises is kept for one that it waits for."""

    @functools.wraps(method)
    def keeping(self: Any, *args: Any, **options: Any) -> Any:
        try:
            return method(self, *args, **options)
        except Exception as error:
            self.calls._keep(error)
            raise

    return keeping


def tells_error(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that the driver waits for: what it misses, it misses for the reason that is kept."""

    @functools.wraps(method)
    def telling(self: Any, *args: Any, **options: Any) -> Any:
        try:
            return method(self, *args, **options)
        except KeyError as error:
            if self.calls._error is None:
                raise
            raise self.calls._told() from error

    return telling


def noted(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of which it is known since when it has been running."""

    @functools.wraps(method)
    def noting(self: Any, *args: Any, **options: Any) -> Any:
        calls = self.calls
        if calls._called_at is not None:
            return method(self, *args, **options)  # within another one
        calls._called_at = time.monotonic()
        try:
            return method(self, *args, **options)
        finally:
            calls._called_at = None

    return noting
