"""A program that needs, in its middle, what other meshes compute, as one host of its mesh runs it.

As `HostExecutable` for other programs: takes this host's parts of the arguments, gives its parts of the results. What
goes wrong between meshes is raised as it is, so that the driver sees which one was lost; what goes wrong in a phase
as an error of the program. Neither is a `RuntimeError`, at which alpa would end the process.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from alpa_cfp.spmd import errors
from alpa_cfp.spmd.compile import backend
from alpa_cfp.spmd.compile.devices import named_sharding
from alpa_cfp.spmd.compile.executable import MeshExecutable
from alpa_cfp.spmd.compile.phased_executable import PhasedExecutable
from alpa_cfp.spmd.compile.phases import Phase
from alpa_cfp.spmd.distributed.host_array import HostArray
from alpa_cfp.spmd.errors import TransportError
from alpa_cfp.spmd.module.hlo_module import HloModule

if TYPE_CHECKING:
    from alpa_cfp.spmd.distributed.host_client import HostClient


class HostPhases(PhasedExecutable):
    """The phases of a program, loaded on the mesh."""

    def __init__(self, client: "HostClient", module: HloModule, phases: Sequence[Phase]):
        try:
            super().__init__(client, module, phases, lambda phase: MeshExecutable(client, phase))
        except Exception as error:
            raise errors.HostProgramError.of("compiled", module.name, error) from error
        devices = tuple(client.devices()[: self.last.program.mesh.num_devices])
        self._parameters = [
            (shape.dims, np.dtype(shape.dtype), named_sharding(devices, sharding))
            for shape, sharding in zip(
                module.shape.parameters, self.last.program.input_shardings[: len(module.shape.parameters)], strict=True
            )
        ]
        self._num_local_devices = len(client.local_devices())

    def execute_sharded_on_local_devices(self, arguments: Sequence[Sequence[jax.Array]]) -> list[HostArray]:
        """Run on this host's parts of the arguments; gives its parts of the results.

        Raises:
            TransportError: the other meshes could not be asked.
            errors.HostProgramError: it failed, here or on a device that this host's devices wait for.
        """
        try:
            arrays = [
                parts.whole if isinstance(parts, HostArray) else backend.array_of_parts(parts, *parameter)
                for parts, parameter in zip(arguments, self._parameters, strict=True)
            ]
            return [HostArray(array, self._num_local_devices) for array in self.run(arrays)]
        except TransportError:
            raise
        except Exception as error:
            raise errors.HostProgramError.of("run", self.module.name, error) from error
