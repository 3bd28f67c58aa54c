"""Replacements in `alpa.util`: tracing, compiling, and what alpa asks Ray about the hosts of its placement group."""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from alpa_on_jax.alpa import compiling, tracing
from alpa_on_jax.ray_mesh.cluster import hosts
from alpa_on_jax.replacing import replace


def apply(module: ModuleType) -> None:
    """Replace names in `alpa.util`."""
    tracing.apply(module)
    compiling.apply(module)
    _replace_placement_groups(module)


def _replace_placement_groups(module: ModuleType) -> None:
    global_config, ray = module.global_config, module.ray

    def create_placement_group(
        num_hosts: int,
        host_num_devices: Sequence[int],
        name: str | None,
        additional_resources_per_host: Mapping[str, float] | None = None,
    ) -> Any:
        """Hold devices on `num_hosts` hosts, of each as many as `host_num_devices` says.

        Raises:
            errors.ClusterResourcesError: they were not free in time.
        """
        resource = global_config.ray_accelerator_name
        wanted = hosts.bundles(resource, host_num_devices[:num_hosts], additional_resources_per_host)
        return hosts.hold(wanted, global_config.host_limits.reserve_s, name)

    def get_bundle2ip(pg: Any = None) -> list[str]:
        """The names of the hosts (`hosts.host_key`) that the bundles of a placement group lie on."""
        nodes = {node["NodeID"]: node for node in ray.nodes()}
        by_bundle = hosts.node_of_bundle(pg)
        return [hosts.host_key(nodes[by_bundle[index]]) for index in sorted(by_bundle)]

    def get_bundle_idx(placement_group: Any, node_ips: Sequence[str]) -> list[int]:
        """The bundle of each of the hosts that are named."""
        keys = get_bundle2ip(placement_group)
        held = hosts.bundles_with(global_config.ray_accelerator_name, placement_group.bundle_specs)
        by_key = {keys[index]: index for index in held}
        return [by_key[key] for key in node_ips]

    def get_num_available_gpus(pg: Any) -> int:
        """How many of the devices that a placement group holds no process has."""
        name = f"{global_config.ray_accelerator_name}_group_{pg.id.hex()}"
        return int(ray.available_resources().get(name, 0))

    replace(module, create_placement_group, get_bundle2ip, get_bundle_idx, get_num_available_gpus)
