"""The hosts of a Ray cluster as the devices of a case: attaches, gives the logical mesh, and ends what it began.

Takes a case and which cluster; gives alpa's logical mesh over all devices of the hosts, and what is to be known of a
program that runs there, as `programs` asks for it. Invariant: when `attached` is left, in whatever way, no process of
the mesh is left on any host, this process is no longer connected, and a cluster that was started for it has ended.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import alpa
import jax
from alpa.device_mesh import get_global_cluster, get_global_physical_mesh
from alpa.shard_parallel.auto_sharding import LogicalDeviceMesh, run_spmd_partitioner_pass

from alpa_cfp.errors import HostsError
from alpa_cfp.spmd.compile.collectives import collectives_of_hlo
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.partition import Collective, PartitionedProgram, partition_to_run
from alpa_cfp_bench.case import Case, Cluster, check_fits
from alpa_cfp_bench.workloads.sizes import mesh_shape
from alpa_on_jax import errors

# What the text of a program has between what runs in each micro-batch and what runs once a step; and before each text.
_ONCE_A_STEP, _TEXT = "// Once a step, after the last micro-batch:", "HloModule "
# Alpa keeps the module as it was before it was partitioned.
_PARTITIONED: "WeakKeyDictionary[Any, tuple[HloModule, ...]]" = WeakKeyDictionary()


@contextlib.contextmanager
def attached(case: Case, cluster: Cluster) -> Iterator[LogicalDeviceMesh]:
    """While the context lasts, the case's mesh over all devices of the cluster's hosts.

    Raises:
        HostsMeshError, HostsError, alpa_on_jax.errors.ClusterError: see `joined`.
    """
    with joined(case, cluster):
        yield get_global_physical_mesh(create_if_not_exist=True).get_logical_mesh(mesh_shape(case.mesh))


@contextlib.contextmanager
def joined(case: Case, cluster: Cluster) -> Iterator[tuple[int, int]]:
    """While the context lasts, alpa's global cluster is of the cluster's hosts; nothing runs on them by itself.

    Gives the number of hosts and of the devices of each.

    Raises:
        HostsMeshError: the mesh has not as many devices as the hosts.
        HostsError: a host failed, or was lost.
        alpa_on_jax.errors.ClusterError: see `alpa.init`.
    """
    # Ray reads it when it is imported: what the hosts' processes print would come between what is printed here.
    os.environ.setdefault("RAY_LOG_TO_DRIVER", "0")
    # The accelerators are the hosts'; this process needs none, and must not hold the memory of one.
    jax.config.update("jax_platforms", "cpu")
    init: Any = alpa.init  # which takes an address on stock JAX
    init("ray", cluster.hosts, cluster.devices_per_host, cluster_address=cluster.address)
    try:
        from ray.exceptions import RayError

        counts = get_global_cluster().host_num_devices
        check_fits(case.mesh, len(counts), counts[0])
        try:
            yield len(counts), counts[0]
        except errors.MeshLostError as error:
            raise HostsError(error.what) from error
        except RayError as error:
            raise HostsError(_words(error)) from error
    finally:
        alpa.shutdown()


def is_on_hosts(mesh: Any) -> bool:
    """Whether a physical mesh of alpa's is one of a Ray cluster's hosts."""
    return getattr(mesh, "workers", None) is not None


def wait(results: Any) -> None:
    """Wait until all hosts have their parts of all `results` of a step: one call of each host."""
    arrays = jax.tree.leaves(results)
    arrays[0].device_mesh.block_until_ready_remote_buffers([array.remote_ref for array in arrays])


@dataclass(frozen=True, slots=True)
class HostsProgram:
    """A program on hosts as `programs` asks for it; see `MeshExecutable`, which it is on each host.

    Attributes:
        module: What was compiled.
        program: The partitioned program.
        size_bytes: What one device needs; of several programs of a step, the one that needs most.
        text: The optimised HLO.
        once_text: That of what runs once a step, after the last micro-batch.
    """

    module: HloModule
    program: PartitionedProgram
    size_bytes: int
    text: str
    once_text: str

    def collectives(self) -> tuple[Collective, ...]:
        return collectives_of_hlo(self.text)

    def grad_sync_collectives(self) -> tuple[Collective, ...]:
        return collectives_of_hlo(self.once_text)

    def total_allocation_size(self) -> int:
        return self.size_bytes


def programs_of(executable: Any) -> list[tuple[HostsProgram, int]]:
    """The programs of alpa's executable, each with how often it runs in a step; the first host says what they are."""
    modules, size = _modules(executable), executable.get_total_allocation_size()
    # Of several programs alpa puts the texts together.
    texts = [_TEXT + text for text in executable.get_hlo_text().split(_TEXT)[1:]]
    times = (executable.num_micro_batches, 1) if len(modules) > 1 else (1,)
    found = []
    for module, text, count in zip(modules, texts, times, strict=True):
        each_time, _, once = text.partition(_ONCE_A_STEP)
        program = module.partitioned if module.partitioned is not None else partition_to_run(module)
        found.append((HostsProgram(module, program, size, each_time, once), count))
    return found


def _modules(executable: Any) -> tuple[HloModule, ...]:
    """The modules of an executable's programs, partitioned."""
    if executable not in _PARTITIONED:
        if hasattr(executable, "accumulate_grad_hlo"):
            wrapped = [executable.accumulate_grad_hlo, executable.apply_grad_hlo]
        else:
            wrapped = [executable.hlo]
        count = executable.physical_mesh.num_devices
        _PARTITIONED[executable] = tuple(
            (run_spmd_partitioner_pass(each, count) if each.is_sharding_annotated() else each).get_module()
            for each in wrapped
        )
    return _PARTITIONED[executable]


def _words(error: Exception) -> str:
    """One line of Ray's message: the last one, the exception, if the task raised one; otherwise the first one."""
    from ray.exceptions import RayTaskError

    said = str(error).strip().splitlines() or [type(error).__name__]
    return said[-1 if isinstance(error, RayTaskError) else 0].strip().rstrip(".")
