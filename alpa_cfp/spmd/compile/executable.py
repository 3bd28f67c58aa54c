"""Compiled programs, with the names that alpa's executables call: `Client.compile` and what it returns.

`Client` stands for a mesh's backend: it compiles for the mesh's own devices and keeps their random state. A
`MeshExecutable` takes and gives `jax.Array`s on the mesh. Where the accumulate step left gradients as parts,
running it also runs the program that sums them, unless alpa sets the environment variable of the forked runtime
(`<name>XLA_SKIP_NCCL_COLLECTIVE_IDS`), which means that this is not the step's last micro-batch.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from alpa_cfp.spmd.compile import backend
from alpa_cfp.spmd.compile.aliases import with_aliases
from alpa_cfp.spmd.compile.collectives import collectives_of_hlo
from alpa_cfp.spmd.compile.devices import Device, Devices, named_sharding, replicated_sharding
from alpa_cfp.spmd.compile.phased_executable import PhasedExecutable, phases_of
from alpa_cfp.spmd.ir.shapes import Shape
from alpa_cfp.spmd.module.hlo_module import HloModule, XlaComputation
from alpa_cfp.spmd.partition import Collective, partition_to_run
from alpa_cfp.spmd.partition.grad_sync import grad_sync_bytecode, unreduced_results
from alpa_cfp.spmd.propagation import donation_pairs
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh

SKIP_GRAD_SYNC_SUFFIX = "XLA_SKIP_NCCL_COLLECTIVE_IDS"


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """The options that alpa gives when it compiles; the rest follows from the module.

    Attributes:
        num_partitions: The number of devices.
        propagate_to_outputs: Whether sharding propagation also decides the outputs' shardings.
        build_random_seed: Kept for alpa's plans; nothing here is random.
    """

    num_partitions: int
    propagate_to_outputs: bool = False
    build_random_seed: int = 0


class RandomState:
    """The seed and the number of the next call that alpa's stateful random ops draw from."""

    def __init__(self, seed: int):
        self.set_seed(seed)

    def set_seed(self, seed: int) -> None:
        self._seed, self._calls = seed % 2**32, 0

    def next(self) -> np.ndarray:
        """The state for one call, ui32[2]."""
        self._calls += 1
        return np.array([self._seed, (self._calls - 1) % 2**32], np.uint32)


class Client:
    """The backend of a mesh of devices of this process.

    Attributes:
        exchange: Combines a scalar of this mesh with those of other meshes between the phases of a program (see
            `phases`): a function of the operation and the scalar; None where there are no other meshes.
    """

    def __init__(self, devices: Sequence[Device], seed: int = 0):
        self._devices: Devices = tuple(devices)
        self.random_state = RandomState(seed)
        self.exchange: Callable[[str, np.ndarray], np.ndarray] | None = None

    @property
    def platform(self) -> str:
        return self._devices[0].platform

    def devices(self) -> list[Device]:
        return list(self._devices)

    def local_devices(self) -> list[Device]:
        return list(self._devices)

    def device_count(self) -> int:
        return len(self._devices)

    def compile(self, computation: XlaComputation, options: CompileOptions) -> "MeshExecutable | PhasedExecutable":
        """Compile a program for the mesh, partitioning it first if it only is annotated."""
        del options  # everything is known from the module
        module = computation.get_hlo_module()
        if phases := phases_of(module):
            return PhasedExecutable(self, module, phases, lambda phase: MeshExecutable(self, phase))
        return MeshExecutable(self, module)

    def compile_zeros(self, shapes: Sequence[Sequence[int]], dtypes: Sequence[Any]) -> "ZerosExecutable":
        """A program that gives each device zero-filled arrays of the given local shapes."""
        return ZerosExecutable(self._devices, shapes, dtypes)

    def put(self, value: np.ndarray, sharding: Sharding) -> jax.Array:
        """`value` on the mesh."""
        return jax.device_put(value, sharding)


class MeshExecutable:
    """A program that is loaded on a mesh.

    Attributes:
        module: The program that was compiled.
        program: The partitioned program.
    """

    def __init__(self, client: Client, module: HloModule):
        self.module = module
        self.program = module.partitioned if module.partitioned is not None else partition_to_run(module)
        self._client = client
        self._devices = tuple(client.devices()[: self.program.mesh.num_devices])
        replicas = self.program.partitioner == "shardy"
        bytecode = with_aliases(module, self.program)
        # The collectives that auto-sharding chose are combined already, up to alpa's limits.
        decided = module.solved and replicas
        self._executable = backend.compile_and_load(
            bytecode, self._devices, one_program_per_device=replicas, combine_sums=not decided
        )
        self._handlers = [
            backend.array_handler(shape.dims, shape.dtype, named_sharding(self._devices, sharding))
            for shape, sharding in zip(module.shape.results, self.program.output_shardings, strict=True)
        ]
        self._parts = unreduced_results(self.program)
        self._grad_sync: Any = None
        if self._parts:
            bytecode = grad_sync_bytecode(self.program, module.shape.results)
            self._grad_sync = backend.compile_and_load(bytecode, self._devices, one_program_per_device=True)
        self._skip_variable = module.name + SKIP_GRAD_SYNC_SUFFIX

    def execute_sharded_on_local_devices(self, arguments: Sequence[jax.Array]) -> list[jax.Array]:
        """The same as `run`, under the name that alpa calls."""
        return self.run(arguments)

    def run(self, arguments: Sequence[jax.Array]) -> list[jax.Array]:
        """Run on arrays that are sharded as `program.input_shardings`."""
        if self.program.draws_random:
            state = self._client.random_state.next()
            placed = self._client.put(state, replicated_sharding(self._devices, self.program.mesh))
            arguments = [*arguments, placed]
        results = backend.execute(self._executable, arguments, self._handlers)
        if self._grad_sync is not None and not os.environ.get(self._skip_variable):
            parts = [results[i] for i in self._parts]
            handlers = [self._handlers[i] for i in self._parts]
            for i, summed in zip(self._parts, backend.execute(self._grad_sync, parts, handlers), strict=True):
                results[i] = summed
        return results

    @property
    def loaded(self) -> Any:
        """The loaded program, if a run is a call of it and nothing else; otherwise None."""
        return None if self.program.draws_random or self._grad_sync is not None else self._executable

    def runner_with_dummy_inputs(self) -> Callable[[], None]:
        """A function that runs the program once on arrays of zeros and waits for it, for timing.

        What a run has taken the buffer of is there again for the next one: as its result where there is one of the same
        place, else as zeros.
        """
        shapes, shardings = self.module.shape.parameters, self.program.input_shardings

        def zeros(parameter: int) -> jax.Array:
            shape = shapes[parameter]
            sharding = named_sharding(self._devices, shardings[parameter])
            return self._client.put(np.zeros(shape.dims, shape.dtype), sharding)

        inputs = [zeros(parameter) for parameter in range(len(shapes))]
        new_value = {
            parameter: result
            for result, parameter in donation_pairs(self.module)
            if self.program.output_shardings[result] == shardings[parameter]
        }

        def run() -> None:
            results = jax.block_until_ready(self.run(inputs))
            for parameter, array in enumerate(inputs):
                if array.is_deleted():
                    result = new_value.get(parameter)
                    inputs[parameter] = zeros(parameter) if result is None else results[result]

        return run

    def hlo_modules(self) -> list["CompiledHloModule"]:
        return [CompiledHloModule(self)]

    def text(self) -> str:
        """The optimised HLO; after it, as one more computation, the program that sums the gradients once a step."""
        text = backend.optimized_text(self._executable)
        if self._grad_sync is None:
            return text
        return f"{text}\n// Once a step, after the last micro-batch:\n{_without_header(self.grad_sync_text())}"

    def step_text(self) -> str:
        """The optimised HLO of the program alone, as it runs for every micro-batch."""
        return backend.optimized_text(self._executable)

    def grad_sync_text(self) -> str:
        """The optimised HLO of the program that sums the gradients; empty where there is none."""
        return "" if self._grad_sync is None else backend.optimized_text(self._grad_sync)

    def collectives(self) -> tuple[Collective, ...]:
        """The communication of one run of the compiled program (without the sum of the gradients once a step)."""
        return collectives_of_hlo(self.step_text())

    def grad_sync_collectives(self) -> tuple[Collective, ...]:
        """The communication once a step, after the last micro-batch."""
        return collectives_of_hlo(self.grad_sync_text())

    def memory_bytes(self) -> dict[str, int]:
        """See `backend.memory_bytes`."""
        return backend.memory_bytes(self._executable)

    def cost_analysis(self) -> dict[str, float | None]:
        """See `backend.cost_analysis`."""
        return backend.cost_analysis(self._executable)

    def xla_cost_analysis(self) -> dict[str, float]:
        """XLA's own counts of one device's work in a run, by its names for them."""
        executable: Any = self._executable
        return dict(executable.cost_analysis() or {})

    def xla_memory_analysis(self) -> Any:
        """XLA's own statistics of one device's memory (`CompiledMemoryStats`)."""
        executable: Any = self._executable
        return executable.get_compiled_memory_stats()

    def total_allocation_size(self) -> int:
        """Bytes that one device needs to run the program: arguments + outputs - aliases + temporaries."""
        sizes = self.memory_bytes()
        return sizes["arguments"] + sizes["outputs"] - sizes["aliased"] + sizes["temporaries"]

    def delete(self) -> None:
        """Let the loaded program go; it cannot be run afterwards."""
        self._executable = self._grad_sync = None


class CompiledHloModule:
    """A compiled program as alpa looks at it."""

    def __init__(self, executable: MeshExecutable):
        self._executable = executable
        self.name = executable.module.name

    def to_string(self) -> str:
        return self._executable.text()

    def parameter_shapes(self) -> list[Shape]:
        """The shapes of one device's parts of the parameters."""
        return [
            Shape(sharding.local_shape(shape.dims), shape.dtype)
            for shape, sharding in zip(
                self._executable.module.shape.parameters, self._executable.program.input_shardings, strict=True
            )
        ]

    def grad_sync_text(self) -> str:
        return self._executable.grad_sync_text()


def get_grad_sync_channel_ids(module: CompiledHloModule) -> str:
    """The numbers of the all-reduces that sum gradients once a step, separated by periods (".1.2."); empty for none."""
    count = module.grad_sync_text().count(" all-reduce(") + module.grad_sync_text().count(" all-reduce-start(")
    return "." + "".join(f"{i + 1}." for i in range(count)) if count else ""


def _without_header(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("HloModule"))


class ZerosExecutable:
    """Allocates one device's part of the gradients, filled with zeros."""

    def __init__(self, devices: Devices, shapes: Sequence[Sequence[int]], dtypes: Sequence[Any]):
        mesh = LogicalMesh((len(devices),))
        types = [
            jax.ShapeDtypeStruct(tuple(shape), np.dtype(dtype)) for shape, dtype in zip(shapes, dtypes, strict=True)
        ]
        lowered = jax.jit(lambda: tuple(jax.numpy.zeros(t.shape, t.dtype) for t in types)).lower()
        module = HloModule.from_stablehlo("allocate_zero_buffers", str(lowered.compiler_ir("stablehlo")))
        self._executable = backend.compile_and_load(module.bytecode, devices, one_program_per_device=True)
        # The arrays are only handed on to programs, which look at the devices' buffers and not at the global shape.
        self._handlers = [
            backend.array_handler(
                t.shape, t.dtype, named_sharding(devices, ArraySharding.replicated(mesh, len(t.shape)))
            )
            for t in types
        ]

    def execute_sharded_on_local_devices(self, arguments: Sequence[jax.Array]) -> list[jax.Array]:
        return backend.execute(self._executable, arguments, self._handlers)

    def delete(self) -> None:
        self._executable = None
