"""Errors of clusters, and of meshes on them."""

from collections.abc import Mapping, Sequence
from typing import Any

from alpa_cfp.spmd.errors import ClusterError


class NoClusterError(ClusterError, ConnectionError):
    """`alpa.init(cluster="ray")` knows of no cluster that it may use, or cannot reach it."""

    @classmethod
    def none_named(cls) -> "NoClusterError":
        return cls(
            'alpa.init(cluster="ray"): no Ray cluster was named, and one that happens to run on this machine is never '
            'joined. Name it by cluster_address="<ip>:<port>" or in the environment variable RAY_ADDRESS, or call '
            'ray.init yourself before; or start one of this machine alone: cluster_address="local"'
        )

    @classmethod
    def other(cls, address: str, connected_to: str) -> "NoClusterError":
        return cls(
            f"alpa.init: cluster_address={address!r} names another cluster than {connected_to}, to which this process "
            "is connected already. Leave cluster_address out to use that one, or call ray.shutdown() before"
        )

    @classmethod
    def by_proxy(cls, address: str) -> "NoClusterError":
        return cls(
            f"alpa.init: {address!r} is the address of a Ray client server, but the hosts of a mesh must reach the "
            "process that calls alpa.init. Run it on a machine of the cluster, and name the cluster by "
            'cluster_address="<ip>:<port>"'
        )

    @classmethod
    def unreachable(cls, address: str, error: Exception) -> "NoClusterError":
        return cls(
            f"alpa.init: nothing can be reached at {address!r}, where a Ray cluster should be: {_first_line(error)}. "
            "Check that `ray status --address=<ip>:<port>` works on this machine"
        )

    @classmethod
    def unanswered(cls, address: str, error: Exception) -> "NoClusterError":
        return cls(
            f"alpa.init: Ray cannot connect to {address!r}: {_first_line(error)}. If something listens there, it wants "
            "another token (RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH, before Python starts), or "
            "is no Ray of this version; what Ray itself has written above tells which"
        )


class ClusterAuthenticationError(ClusterError, PermissionError):
    """The cluster wants a token that this process does not have."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"alpa.init: the Ray cluster at {address!r} refuses the token of this process, or its lack of one. Set "
            "RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the cluster's token, before Python "
            "starts"
        )


class ClusterResourcesError(ClusterError, ValueError):
    """The cluster has not got the hosts and devices that were asked for."""

    @classmethod
    def no_devices(cls, resource: str) -> "ClusterResourcesError":
        return cls(
            f"no node of the Ray cluster offers the resource {resource!r}. A node with GPUs offers them by itself if "
            "its drivers work; one with virtual CPU devices is started by `ray start ... --resources "
            "'{\"alpa_cpu_device\": 4}'`"
        )

    @classmethod
    def fraction(cls, resource: str, number: float) -> "ClusterResourcesError":
        return cls(f"a node of the Ray cluster offers {number} of {resource!r}; devices are whole")

    @classmethod
    def unequal(cls, resource: str, numbers: Sequence[int]) -> "ClusterResourcesError":
        return cls(
            f"the nodes of the Ray cluster offer different numbers of {resource!r} ({_numbers(numbers)}), and the "
            "hosts of a mesh have equally many. Say how many to use: alpa.init(..., num_devices_per_node=...)"
        )

    @classmethod
    def too_few_wanted(cls, option: str, number: int) -> "ClusterResourcesError":
        return cls(f"alpa.init: {option}={number} must be at least 1; leave it out for all that there are")

    @classmethod
    def too_small(
        cls, resource: str, num_hosts: int, num_devices: int, numbers: Sequence[int]
    ) -> "ClusterResourcesError":
        return cls(
            f"the Ray cluster is too small: {num_hosts} nodes with {num_devices} of {resource!r} each are wanted, and "
            f"its nodes offer {_numbers(numbers)}. Give smaller num_nodes and num_devices_per_node, or add nodes"
        )

    @classmethod
    def busy(
        cls, bundles: Sequence[Mapping[str, float]], limit_s: float, free: Mapping[str, float]
    ) -> "ClusterResourcesError":
        names = sorted({name for bundle in bundles for name in bundle})
        left = ", ".join(f"{free.get(name, 0):g} of {name!r}" for name in names)
        return cls(
            f"the Ray cluster did not have {len(bundles)} nodes with {dict(bundles[0])} free within {limit_s:g} s. In "
            f"the whole cluster {left} are free: something else holds the rest, perhaps another program that uses alpa"
        )

    @classmethod
    def not_free(cls, wanted: int, free: int, limit_s: float) -> "ClusterResourcesError":
        return cls(
            f"AutoStageOption times stages on {wanted} devices of the cluster, of which only {free} were free within "
            f"{limit_s:g} s: a mesh that this program uses already has the others. Parallelize this function first, or "
            "call alpa.shutdown() and alpa.init(...) before"
        )


class HostError(ClusterError):
    """A process of a mesh could not be started, or could not do what it was asked for."""

    @classmethod
    def late(cls, host: str, limit_s: float) -> "HostError":
        return cls(
            f"the process of the mesh on host {host} did not answer within {limit_s:g} s. Either it is still "
            "starting, which takes long on a busy machine (alpa.global_config.host_limits has create_s), or it cannot "
            "reach the other hosts or the process that called alpa.init: check firewalls"
        )

    @classmethod
    def no_start(cls, host: str, error: Exception) -> "HostError":
        return cls(
            f"the process of the mesh on host {host} could not be started: {_last_line(error)}. It needs this "
            "environment's Python, alpa and JAX on every node; Ray's logs on that node have more"
        )

    @classmethod
    def no_node(cls, host: str) -> "HostError":
        return cls(
            f"the node of host {host} has left the Ray cluster. To go on with the nodes that are left, call "
            "alpa.shutdown() and alpa.init(...) again"
        )

    @classmethod
    def other_devices(cls, host: int, wanted: int, found: int) -> "HostError":
        return cls(
            f"host {host} of the mesh has {found} devices and not {wanted}: what Ray offers on its node is not what "
            "JAX finds there"
        )

    @classmethod
    def of(cls, host: int, error: Exception | None) -> "HostError":
        return cls(f"host {host} of the mesh failed earlier: {type(error).__name__}: {error}")


class MeshEndedError(ClusterError):
    """Something of a mesh was used after the mesh had ended."""

    @classmethod
    def of(cls, mesh: Any) -> "MeshEndedError":
        """The error of alpa's `DistributedPhysicalDeviceMesh` `mesh`."""
        lost = getattr(mesh, "lost", None)
        why = f" because it was lost ({lost})" if lost else ""
        return cls(
            f"the mesh on {', '.join(mesh.node_ips)} has ended{why}, and its arrays and programs with it. Make arrays "
            "anew on another mesh, or restore a checkpoint; values that are needed after alpa.shutdown must be fetched "
            "(numpy.asarray) before"
        )


class MeshLostError(ClusterError):
    """A host of a mesh is gone, or hangs; the mesh has been ended.

    Attributes:
        what: Is wrong with which host; known in the process that ended the mesh.
    """

    what: str = ""

    PROCESS_GONE = "its process has ended: killed, out of memory, or a crash; Ray's logs on that node have more"
    NODE_GONE = "its node has left the Ray cluster"
    LEFT_ALONE = "it waits for another host, on which something has failed"

    @classmethod
    def of(cls, hosts: Sequence[str], what: str) -> "MeshLostError":
        error = cls(
            f"the mesh on {', '.join(hosts)} was lost ({what}). All of its processes have been ended, and its arrays "
            "and programs are gone. Restore a checkpoint, or make the arrays anew, and call the function again: it "
            "gets a new mesh"
        )
        error.what = what
        return error

    @classmethod
    def silent(cls, limit_s: float) -> str:
        return (
            f"its process has not answered for {limit_s:g} s; it is stopped, or its machine is overloaded or cannot be "
            "reached (alpa.global_config.host_limits has ping_s)"
        )

    @classmethod
    def stuck(cls, seconds: float) -> str:
        return (
            f"it has been at one step, compilation or write for {seconds:.0f} s (alpa.global_config.host_limits has "
            "call_s)"
        )


def _numbers(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")


def _last_line(error: Exception) -> str:
    """The last line of a remote exception, which comes after the traceback."""
    return str(error).strip().rpartition("\n")[2].rstrip(".")
