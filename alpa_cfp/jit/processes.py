"""`autoshard` in several processes: one of them plans, and all get its plan.

Takes the call of `autoshard` in each process of a `jax.distributed` program whose devices are in the mesh. The first of
them plans and keeps the profiles, the others measure what it wants to know. Invariants: all get the same plan, byte for
byte, or all get an error; no process waits for another one that is gone, or does not answer.
"""

import hashlib
import logging
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from functools import partial
from typing import Any, Protocol

import jax
from jax.sharding import Mesh

from alpa_cfp.errors import ProcessesError
from alpa_cfp.jit.meshes import AnyMesh, axis_types_of
from alpa_cfp.jit.tracing import Leaf, TracedFunction
from alpa_cfp.plan.plan import Plan
from alpa_cfp.planner.options import PlanOptions
from alpa_cfp.planner.request import LocalDevices, Measured, PlanRequest
from alpa_cfp.profiling import MeasureOptions
from alpa_cfp.profiling.processes.joining import Joined, join
from alpa_cfp.profiling.processes.measuring import measurer_of, own_host
from alpa_cfp.profiling.processes.peers import Failed, PeerLostError, end_all
from alpa_cfp.profiling.processes.serving import Planned, serve
from alpa_cfp.spmd.ir import mlir

logger = logging.getLogger(__name__)

Make = Callable[[PlanRequest], Plan]
# Each process has its own; those of the first one are used.
_OWN_OPTIONS: dict[str, Any] = {"database": None, "progress": True, "plan": None}


class Planning(Protocol):
    """The processes that plan together."""

    def planned(self, program: TracedFunction, make: Make) -> Plan:
        """Returns the plan of all processes.

        Args:
            program: The program, as this process has traced it.
            make: Makes the plan; called in one process.

        Raises:
            ProcessesError: a process is lost or has failed, or they have different programs.
        """
        ...


@contextmanager
def planning_together(mesh: AnyMesh, request: PlanRequest, options: PlanOptions) -> Iterator[Planning]:
    """Joins the processes of a mesh while the context lasts. An error in it ends the contexts of all processes.

    Raises:
        ProcessesError: not all processes of the mesh have come.
    """
    processes = _processes_of(mesh)
    # A mesh without devices needs no backend.
    own = jax.process_index() if len(processes) > 1 else None
    if not isinstance(mesh, Mesh) or own is None or own not in processes:
        yield _Alone(request)
        return
    joined = join(processes, own)
    is_first = own == processes[0]
    planning = (_First if is_first else _Other)(joined, mesh, request, options)
    try:
        yield planning
    except BaseException as error:
        end_all(joined.peers, Failed.by(own, error))
        raise
    end_all(joined.peers, planning.last)


@dataclass(frozen=True, slots=True)
class _Alone:
    """This process plans without others."""

    request: PlanRequest

    def planned(self, program: TracedFunction, make: Make) -> Plan:
        del program
        return make(self.request)


@dataclass(slots=True)
class _First:
    """The process that plans.

    Attributes:
        last: What the others are told at last.
    """

    joined: Joined
    mesh: Mesh
    request: PlanRequest
    options: PlanOptions
    last: Planned | None = None

    def planned(self, program: TracedFunction, make: Make) -> Plan:
        devices = _DevicesOfProcesses(self.joined, tuple(self.mesh.devices.flat))
        try:
            self._compare(_description(program, self.mesh, self.options))
            plan = make(replace(self.request, devices=devices))
        except Exception as error:
            self._raise_if_lost(error)
            raise
        self._raise_if_lost(None)
        self.last = Planned(plan.to_json())
        return plan

    def _compare(self, own: dict[str, str]) -> None:
        differences = list[tuple[int, str]]()
        for peer in self.joined.peers:
            other: dict[str, str] = peer.receive()
            if names := [name for name in own if other[name] != own[name]]:
                differences.append((peer.process, " and ".join(names)))
        if differences:
            raise ProcessesError.other_programs(self.joined.own.process, differences)

    def _raise_if_lost(self, cause: Exception | None) -> None:
        for peer in self.joined.peers:
            if peer.lost is not None:
                raise _error_of(peer.lost) from cause


@dataclass(slots=True)
class _Other:
    """A process that gets its plan from the first one; see `_First`."""

    joined: Joined
    mesh: Mesh
    request: PlanRequest
    options: PlanOptions
    last: None = None

    def planned(self, program: TracedFunction, make: Make) -> Plan:
        del make
        (first,) = self.joined.peers
        devices = tuple(self.mesh.devices.flat)
        logger.info("process %d plans, and this one measures for it", first.process)
        try:
            first.send(0, _description(program, self.mesh, self.options))
            return Plan.from_json(serve(first, partial(own_host, self.joined, devices)))
        except PeerLostError as error:
            raise _error_of(error) from None


@dataclass(frozen=True, slots=True)
class _DevicesOfProcesses:
    """The devices of a mesh of several processes; see `planner.request.Devices`."""

    joined: Joined
    devices: tuple[Any, ...]

    @property
    def key(self) -> Hashable:
        return self.devices

    def measured(self, options: MeasureOptions) -> Measured:
        return measurer_of(self.joined, self.devices, options)

    def memory_bytes(self) -> int:
        own = tuple(each for each in self.devices if each.process_index == self.joined.own.process)
        return LocalDevices(own, (len(own),)).memory_bytes()


def _processes_of(mesh: AnyMesh) -> list[int]:
    return sorted({device.process_index for device in mesh.devices.flat}) if isinstance(mesh, Mesh) else []


def _description(program: TracedFunction, mesh: Mesh, options: PlanOptions) -> dict[str, str]:
    """What must be the same in all processes, by the words for what is not; digests of texts that may be long."""
    with mlir.context():
        text = mlir.to_text(mlir.parse(program.module.bytecode))
    devices = [device.id for device in mesh.devices.flat]
    parts = {
        "another program": (text,),
        "other arguments": _leaves(program.inputs),
        "other results": _leaves(program.outputs),
        "other shardings that are decided": (program.asked, program.asked_of_results),
        "another mesh": (mesh.axis_names, mesh.axis_sizes, axis_types_of(mesh), devices),
        "other options": astuple(replace(options, **_OWN_OPTIONS)),
    }
    return {name: hashlib.sha256(repr(part).encode()).hexdigest() for name, part in parts.items()}


def _leaves(leaves: tuple[Leaf, ...]) -> tuple[Any, ...]:
    return tuple((leaf.path, leaf.shape, str(leaf.dtype), leaf.weak_type, leaf.donated) for leaf in leaves)


def _error_of(lost: PeerLostError) -> BaseException:
    """The error that all processes raise where one is lost or has failed."""
    if lost.failure is None:
        return ProcessesError.lost(lost.process, lost.reason)
    return lost.failure.original() or ProcessesError.failed(lost.process, lost.reason)
