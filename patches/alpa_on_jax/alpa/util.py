"""Replacements in `alpa.util`."""

from types import ModuleType

from alpa_on_jax.alpa import compiling, tracing


def apply(module: ModuleType) -> None:
    """Replace names in `alpa.util`."""
    tracing.apply(module)
    compiling.apply(module)
