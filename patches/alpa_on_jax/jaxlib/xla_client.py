"""Completes `jaxlib.xla_client`: alpa reads `ops`, the operators of the XLA builder, while it is imported.

The builder is gone from jaxlib; the functions of alpa that used it are replaced.
"""

from types import SimpleNamespace

__all__ = ["ops"]

ops = SimpleNamespace()
