"""A compiled program that needs, in its middle, values of other meshes: `Client.compile` gives it for such modules.

It has the methods of a `MeshExecutable` that alpa calls. Takes and gives `jax.Array`s on the mesh; the phases run one
after the other (`phases`), and between them the client exchanges scalars with other meshes. Invariant: a run that
fails, or the exchange, has not taken any buffer of an argument, since only the last phase reuses them.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from alpa_cfp.spmd import errors
from alpa_cfp.spmd.compile import backend
from alpa_cfp.spmd.compile.devices import replicated_sharding
from alpa_cfp.spmd.compile.phases import Phase, split_at_exchanges
from alpa_cfp.spmd.ir.shapes import Shape
from alpa_cfp.spmd.module.hlo_module import HloModule

if TYPE_CHECKING:
    from alpa_cfp.spmd.compile.executable import Client, MeshExecutable


def phases_of(module: HloModule) -> tuple[Phase, ...]:
    """The phases of a program, into which it is cut if it is not yet; none where it needs no other mesh."""
    return module.phases if module.phases or module.partitioned is not None else split_at_exchanges(module)


class PhasedExecutable:
    """The phases of a program, loaded on a mesh.

    Args:
        client: The backend of the mesh.
        module: The program.
        phases: Its phases.
        compile_phase: Compiles the program of one phase.

    Attributes:
        module: The program.
    """

    def __init__(
        self,
        client: "Client",
        module: HloModule,
        phases: Sequence[Phase],
        compile_phase: "Callable[[HloModule], MeshExecutable]",
    ):
        self.module = module
        self._client = client
        self._phases = tuple(phases)
        self._programs = [compile_phase(phase.module) for phase in phases]

    @property
    def last(self) -> "MeshExecutable":
        """The last phase, which gives the results of the program."""
        return self._programs[-1]

    def execute_sharded_on_local_devices(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """The same as `run`, under the name that alpa calls."""
        return self.run(arguments)

    def run(self, arguments: Sequence[jax.Array]) -> list[jax.Array]:
        """Run on arrays that are sharded as the last phase's `program.input_shardings`.

        Raises:
            errors.InternalError: the client has no way to other meshes.
        """
        values = list(arguments)
        results: list[jax.Array] = []
        for phase, program in zip(self._phases, self._programs, strict=True):
            results = program.run(values)
            scalars, kept = results[: len(phase.exchanged)], results[len(phase.exchanged) :]
            values += [self._exchange(what, scalar) for what, scalar in zip(phase.exchanged, scalars, strict=True)]
            values += kept
        return results

    def _exchange(self, what: str, scalar: jax.Array) -> jax.Array:
        """A scalar that all devices have, as it is when the other meshes have given theirs."""
        if self._client.exchange is None:
            raise errors.InternalError(
                f"{self.module.name} needs what other meshes compute ({what}), but runs on a mesh that knows no others"
            )
        own = np.asarray(backend.parts_of_array(scalar)[0])
        total = np.asarray(self._client.exchange(what, own), own.dtype)
        devices = tuple(self._client.devices()[: self.last.program.mesh.num_devices])
        return self._client.put(total, replicated_sharding(devices, self.last.program.mesh))

    def runner_with_dummy_inputs(self) -> Callable[[], None]:
        """A function that runs each phase once on zeros of its own, without other meshes, and waits: for timing."""
        runs = [program.runner_with_dummy_inputs() for program in self._programs]

        def run() -> None:
            for each in runs:
                each()

        return run

    def hlo_modules(self) -> list["CompiledPhases"]:
        return [CompiledPhases(self)]

    def text(self) -> str:
        """The optimised HLO of all phases; between them a line for each exchange, by its name in the fork of XLA."""
        texts = (program.text() for program in self._programs)
        return "\n".join(phase.with_exchanges(text) for phase, text in zip(self._phases, texts, strict=True))

    def grad_sync_text(self) -> str:
        """See `MeshExecutable.grad_sync_text`."""
        return self.last.grad_sync_text()

    def total_allocation_size(self) -> int:
        """Bytes that one device needs for the largest phase; the arguments and what is kept are among each one's."""
        return max(program.total_allocation_size() for program in self._programs)

    def delete(self) -> None:
        """Let the loaded programs go; they cannot be run afterwards."""
        for program in self._programs:
            program.delete()


class CompiledPhases:
    """Compiled phases as alpa looks at a compiled program."""

    def __init__(self, executable: PhasedExecutable):
        self._executable = executable
        self.name = executable.module.name

    def to_string(self) -> str:
        return self._executable.text()

    def parameter_shapes(self) -> list[Shape]:
        """The shapes of one device's parts of the program's parameters."""
        (last,) = self._executable.last.hlo_modules()
        return last.parameter_shapes()[: len(self._executable.module.shape.parameters)]

    def grad_sync_text(self) -> str:
        return self._executable.grad_sync_text()
