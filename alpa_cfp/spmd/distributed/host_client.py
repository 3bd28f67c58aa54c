"""The backend of a mesh as one of its hosts has it: it compiles for all devices, and takes and gives this host's parts.

Where alpa's host processes keep an array, they keep the list of what each of their devices holds of it. Takes such
lists, and `HostArray`s, which stand for them without taking an array apart; gives the latter. Invariants: every host
does the same calls in the same order, and no call but a program's own run communicates. No `RuntimeError` leaves a
program: alpa answers one by ending the process, and the reason would be lost.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from alpa_cfp.spmd import errors
from alpa_cfp.spmd.compile import backend
from alpa_cfp.spmd.compile.devices import Device, named_sharding
from alpa_cfp.spmd.compile.executable import Client, CompileOptions, MeshExecutable, ZerosExecutable
from alpa_cfp.spmd.compile.phased_executable import PhasedExecutable, phases_of
from alpa_cfp.spmd.compile.phases import Phase
from alpa_cfp.spmd.distributed.host_array import HostArray
from alpa_cfp.spmd.module.hlo_module import HloModule, XlaComputation
from alpa_cfp.spmd.module.partitioned import PartitionedProgram

Parts = Sequence[jax.Array]


class HostClient(Client):
    """The backend of a mesh of devices of several processes, in one of them."""

    def local_devices(self) -> list[Device]:
        """Those of this process."""
        return [device for device in self._devices if device.process_index == device.client.process_index()]

    def buffer_from_pyval(self, value: Any, device: Device) -> jax.Array:
        """A copy of `value` on a device of this process."""
        # A value that comes through Ray is a view of its memory, which the device must not hold or write.
        return jax.device_put(np.array(value), device)

    def put(self, value: np.ndarray, sharding: Sharding) -> jax.Array:
        """`value`, which is the same on every host, on the mesh."""
        # `device_put` would compare the hosts' values, by a program of its own.
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    def compile(self, computation: XlaComputation, options: CompileOptions) -> "HostExecutable | HostPhases":
        """As `Client.compile`; on every host the same program, at about the same time."""
        del options
        module = computation.get_hlo_module()
        phases = phases_of(module)
        return HostPhases(self, module, phases) if phases else HostExecutable(self, module)

    def compile_zeros(self, shapes: Sequence[Sequence[int]], dtypes: Sequence[Any]) -> "HostZerosExecutable":
        return HostZerosExecutable(self, shapes, dtypes)


class _HostProgram:
    """A program as one host of its mesh runs it: it takes and gives this host's parts of arrays on the mesh."""

    module: HloModule
    run: Callable[[Sequence[jax.Array]], list[jax.Array]]

    def _set_parameters(self, client: HostClient, program: PartitionedProgram) -> None:
        """Prepare for arguments that are sharded as those of `program`, of which it may have more."""
        devices = tuple(client.devices()[: program.mesh.num_devices])
        self._parameters = [
            (shape.dims, shape.dtype, named_sharding(devices, sharding))
            for shape, sharding in zip(self.module.shape.parameters, program.input_shardings, strict=False)
        ]
        self._num_local_devices = len(client.local_devices())

    def execute_sharded_on_local_devices(self, arguments: Sequence[Parts]) -> list[HostArray]:
        """Run on this host's parts of the arguments; gives its parts of the results.

        Raises:
            TransportError: the exchange with other meshes failed.
            errors.HostProgramError: it failed, here or on a device that this host's devices wait for.
        """
        with _program_errors("run", self.module):
            arrays = [
                parts.whole if isinstance(parts, HostArray) else backend.array_of_parts(parts, *parameter)
                for parts, parameter in zip(arguments, self._parameters, strict=True)
            ]
            return [HostArray(array, self._num_local_devices) for array in self.run(arrays)]


class HostExecutable(_HostProgram, MeshExecutable):  # pyright: ignore[reportIncompatibleMethodOverride]
    """A program that is loaded on the mesh, as one host runs it."""

    def __init__(self, client: HostClient, module: HloModule):
        with _program_errors("compiled", module):
            super().__init__(client, module)
        self._set_parameters(client, self.program)


class HostPhases(_HostProgram, PhasedExecutable):
    """A program that needs, in its middle, what other meshes compute, as one host of its mesh runs it."""

    def __init__(self, client: HostClient, module: HloModule, phases: Sequence[Phase]):
        with _program_errors("compiled", module):
            super().__init__(client, module, phases, lambda phase: MeshExecutable(client, phase))
        self._set_parameters(client, self.last.program)


@contextmanager
def _program_errors(what: str, module: HloModule) -> Iterator[None]:
    """Raise errors as errors of the program, but those between meshes as they are: they name the mesh that was lost."""
    try:
        yield
    except errors.TransportError:
        raise
    except Exception as error:
        raise errors.HostProgramError.of(what, module.name, error) from error


class HostZerosExecutable(ZerosExecutable):
    """Allocates this host's parts of the gradients, filled with zeros."""

    def __init__(self, client: HostClient, shapes: Sequence[Sequence[int]], dtypes: Sequence[Any]):
        super().__init__(tuple(client.devices()), shapes, dtypes)
        self._num_local_devices = len(client.local_devices())

    def execute_sharded_on_local_devices(self, arguments: Sequence[Parts]) -> list[HostArray]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return [HostArray(array, self._num_local_devices) for array in super().execute_sharded_on_local_devices([])]
