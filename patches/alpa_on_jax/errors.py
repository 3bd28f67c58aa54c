"""Every error that a user of alpa on stock JAX can cause, worded once: what failed, the value, why, what to do.

Takes the values that were wrong and gives back exceptions; nothing here looks at the system. Each class also derives
from the built-in exception that Python code would expect in its place, so that `except ImportError` or
`except TypeError` around a call into alpa keep working.
"""

from collections.abc import Sequence
from typing import Any


class AlpaOnJaxError(Exception):
    """Base of all errors here, to catch them together."""


class AlpaMissingError(AlpaOnJaxError, ModuleNotFoundError):
    """Alpa itself is not installed."""

    def __init__(self, wanted: str) -> None:
        super().__init__(
            "No module named 'alpa'. This environment can run alpa on stock JAX, but alpa is not installed. Install it "
            f"without the versions that it pins: pip install --no-deps alpa=={wanted}",
            name="alpa",
        )


class AlpaVersionError(AlpaOnJaxError, ImportError):
    """Another version of alpa is installed."""

    def __init__(self, found: str, wanted: str) -> None:
        super().__init__(
            f"alpa {found} is installed, but only alpa {wanted} runs on stock JAX: its functions are replaced by name. "
            f"Install that one: pip install --no-deps alpa=={wanted}",
            name="alpa",
        )


class AlpaShadowedError(AlpaOnJaxError, ImportError):
    """The alpa that Python would import is not the installed one."""

    def __init__(self, found: str, installed: str) -> None:
        super().__init__(
            f"`import alpa` finds {found} before the installed {installed}. That usually happens when Python runs in a "
            "folder that has another alpa in it. Run it from elsewhere, or take that folder off sys.path",
            name="alpa",
            path=found,
        )


class JaxVersionError(AlpaOnJaxError, ImportError):
    """The installed jax and jaxlib are not a tested pair."""

    def __init__(self, found: dict[str, str | None], tested: Sequence[str], variable: str) -> None:
        have = " and ".join(f"{name} {version or 'not installed'}" for name, version in found.items())
        super().__init__(
            f"alpa on stock JAX is tested with jax and jaxlib {' and '.join(tested)} (both of the same version), but "
            f"here are {have}. It uses JAX internals that change between versions. Install a tested version, for "
            f"example: pip install jax=={tested[0]} jaxlib=={tested[0]}; or set {variable}=1 to try this one anyway",
            name="jax",
        )


class RayMissingError(AlpaOnJaxError, ModuleNotFoundError):
    """Ray is needed now, and not installed."""

    def __init__(self, wanted: str) -> None:
        super().__init__(
            f"No module named {wanted.partition('.')[0]!r}: alpa needs {wanted} here, and Ray is not installed. Only "
            "meshes of several processes need it. Install it (pip install ray), or stay in this process: "
            'alpa.init(cluster="local")',
            name=wanted.partition(".")[0],
        )


class RayNameError(AlpaOnJaxError, ImportError):
    """Alpa wants a name of Ray that the installed Ray does not have."""

    def __init__(self, module: str, name: str) -> None:
        super().__init__(
            f"alpa needs {module}.{name}, which the installed Ray does not have: it was removed since Ray 2.1, for "
            "which alpa was written",
            name=module,
        )


class NotCallableError(AlpaOnJaxError, TypeError):
    """`alpa.parallelize` was given something that is no function."""

    def __init__(self, value: Any) -> None:
        super().__init__(
            f"alpa.parallelize expects a function, but got {value!r} of type {type(value).__name__}. Give it the "
            "function itself, not the result of calling it"
        )


class NotAnArrayError(AlpaOnJaxError, TypeError):
    """A dynamic argument of a parallelized function has a leaf that is no array."""

    def __init__(self, function: str, leaf: str, value: Any) -> None:
        super().__init__(
            f"{function}: {leaf} is {value!r} of type {type(value).__name__}, which is no array. Only arrays and "
            "numbers can be distributed; give anything else as a static argument (alpa.parallelize(..., "
            "static_argnums=...)) or keep it out of the arguments"
        )


class NotJittableError(AlpaOnJaxError, TypeError):
    """The function cannot be traced, so it cannot be compiled."""

    def __init__(self, function: str, reason: str) -> None:
        super().__init__(
            f"{function} cannot be compiled, because tracing it failed: {reason}. A function for alpa.parallelize must "
            "be one that jax.jit accepts: no Python control flow on the values of arrays, and arrays as results"
        )


class ArgnumsError(AlpaOnJaxError, ValueError):
    """static_argnums, donate_argnums or batch_argnums do not fit the arguments."""

    def __init__(self, function: str, option: str, value: Any, reason: str) -> None:
        super().__init__(f"{function}: {option}={value!r} {reason}")


class MicroBatchError(AlpaOnJaxError, ValueError):
    """The batch cannot be split in micro-batches."""


class ShardingOptionError(AlpaOnJaxError, ValueError):
    """A manual sharding does not fit the mesh or the array."""
