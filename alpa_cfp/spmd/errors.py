"""Every error of the compiler core that a user can cause, worded once: what failed, the value, why, what to do."""

from collections.abc import Mapping, Sequence
from typing import Any


class SpmdError(Exception):
    """Base of all errors here, to catch them together. They can be sent to other processes."""

    def __reduce__(self) -> tuple[Any, ...]:
        # From their message: most are made from other values, which are not stored.
        return _rebuilt, (type(self), self.args)


def _rebuilt(kind: type[SpmdError], args: tuple[Any, ...]) -> SpmdError:
    error = kind.__new__(kind, *args)
    error.args = args
    return error


class InternalError(SpmdError, RuntimeError):
    """Something that must hold does not: a mistake in this package, and never a wrong result instead."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. This is a mistake in alpa_cfp, not in your program: please report it")


class KeyKindError(SpmdError, TypeError):
    """Typed random keys are of a kind that somebody has added to jax."""

    def __init__(self, dtype: Any, known: Sequence[str]) -> None:
        super().__init__(
            f"random keys of the dtype {dtype} are of none of the kinds that can be taken out of their bits again: "
            f"{', '.join(known)}. Make keys with jax.random.key(seed, impl=...) of one of these"
        )


class HostCallbackError(SpmdError, NotImplementedError):
    """A parallelized function calls back into Python while it runs."""

    def __init__(self, program: str, callbacks: Sequence[str]) -> None:
        super().__init__(
            f"{program}: a parallelized function cannot call back into Python while it runs, but it does so by "
            f"{', '.join(callbacks)}: its program runs on all devices of a mesh, in other processes too, without the "
            "Python functions that it would call. Return the values and look at them outside (in place of "
            "jax.debug.print and jax.debug.callback), or compute them before the call or with JAX's own operations (in "
            "place of jax.pure_callback and io_callback)"
        )


class ShardingOptionError(SpmdError, ValueError):
    """A manual sharding does not fit the mesh or the array."""

    @classmethod
    def part_of_axis(cls, parameter: object, sharding: object) -> "ShardingOptionError":
        return cls(
            f"the ILP splits along whole mesh axes, and {parameter} is given as {sharding}: give another sharding of "
            "it, or a mesh of another shape"
        )


class IndivisibleShardingError(ShardingOptionError):
    """A sharding that was set on an input or output does not divide its array."""

    def __init__(self, kind: str, index: int, shape: Sequence[int], mesh_shape: Sequence[int]) -> None:
        super().__init__(
            f"the sharding that was set for {kind} {index} of shape {tuple(shape)} does not divide it on a logical "
            f"mesh of shape {tuple(mesh_shape)}: every dim must be a multiple of the number of devices that split it. "
            "Change the batch size or the array's shape, or split another dim"
        )


class ForeignMeshError(SpmdError, ValueError):
    """A program asks for shardings over another mesh than the one that it is planned for."""

    def __init__(self, named: Mapping[str, int], planned: Mapping[str, int]) -> None:
        super().__init__(
            f"the program asks for shardings over a mesh with the axes {_axes(named)}, and is planned for one with "
            f"the axes {_axes(planned)}: give autoshard the mesh of the program, or the program that mesh"
        )


class NamedMeshError(SpmdError, ValueError):
    """A function for `alpa.parallelize` asks for shardings over a mesh."""

    def __init__(self, program: str, named: Mapping[str, int]) -> None:
        super().__init__(
            f"{program}: the function asks for shardings over a mesh with the axes {_axes(named)}, but alpa chooses "
            "meshes by itself, and their axes have no names. Take with_sharding_constraint, reshard and shard_map out "
            "of it, or plan it by alpa_cfp.autoshard, which keeps what they ask for"
        )


class NestedIslandError(SpmdError, NotImplementedError):
    """A program has a part that is written for each device inside another one."""

    def __init__(self) -> None:
        super().__init__(
            "a jax.shard_map inside a jax.shard_map cannot be planned around: write one over all of their axes"
        )


class ClusterError(SpmdError, RuntimeError):
    """alpa.init or alpa.shutdown failed."""

    WORKER_GONE = "it has ended: killed, out of memory, or a crash; Ray's logs on that node have more"


class NoPortError(ClusterError, OSError):
    """There is no port for the service that the hosts of a mesh find each other by."""

    def __init__(self, ip: str, first: int, last: int) -> None:
        super().__init__(
            f"no port of {ip} from {first} to {last} is free for the service of a mesh. Give others by the "
            "environment variables XLA_SERVER_PORT_START and XLA_SERVER_PORT_END"
        )


class HostProgramError(SpmdError):
    """A program failed in the processes of a mesh. No RuntimeError: alpa ends the process at one."""

    @classmethod
    def of(cls, what: str, program: str, error: Exception) -> "HostProgramError":
        return cls(f"the program {program} could not be {what} on the hosts of the mesh: {error}")


class TransportError(SpmdError):
    """Arrays cannot be moved between processes."""


def _axes(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items()) or "none"
