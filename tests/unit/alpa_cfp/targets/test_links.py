"""The links of a target are those of its chip, in the order of its devices."""

from dataclasses import replace

import pytest

from alpa_cfp.targets.errors import TargetError
from alpa_cfp.targets.interconnect import GpuInterconnect, TorusInterconnect, collective_s
from alpa_cfp.targets.links import interconnect_of
from alpa_cfp.targets.target import target


def gpus(name: str) -> GpuInterconnect:
    found = interconnect_of(target(name))
    assert isinstance(found, GpuInterconnect)
    return found


def test_gpus_of_a_host_are_joined_by_its_links_and_hosts_by_the_network() -> None:
    found = gpus("h100:4x8")
    assert (found.generation, found.hosts, found.devices_per_host) == ("hopper", 4, 8)
    assert (found.host_link.kind, found.host_link.bytes_per_s, found.host_link.reduces) == ("nvlink", 450e9, True)
    assert found.network is not None
    assert found.network.bytes_per_s == 50e9


def test_gpus_without_nvlink_share_what_they_have() -> None:
    found = gpus("a100-pcie:2x8")
    assert found.host_link.kind == "pcie"
    assert found.network is not None
    assert (found.network.devices_per_nic, found.network.bytes_per_s) == (8, 25e9)


def test_what_a_network_takes_beyond_the_tables_of_nccl_makes_collectives_between_hosts_longer() -> None:
    known = target("a100:2x8")
    assert known.chip.outer is not None
    slower = replace(known.chip, outer=replace(known.chip.outer, extra_latency_s=75e-6))
    plain, found = (interconnect_of(replace(known, chip=chip)) for chip in (known.chip, slower))
    everywhere, within = [tuple(range(16))], [tuple(range(8)), tuple(range(8, 16))]
    assert collective_s("all-reduce", 1024, everywhere, found) > collective_s("all-reduce", 1024, everywhere, plain)
    assert collective_s("all-reduce", 1024, within, found) == collective_s("all-reduce", 1024, within, plain)


def test_a_slice_of_tpus_is_a_torus_whose_large_dims_are_rings() -> None:
    found = interconnect_of(target("v5e:8x16"))
    assert isinstance(found, TorusInterconnect)
    assert (found.dims, found.wraps) == ((8, 16), (False, True))


def test_a_gpu_of_a_generation_without_constants_is_refused_by_name() -> None:
    known = target("h100:1x8")
    assert known.chip.architecture is not None
    old = replace(known.chip, name="v100", architecture=replace(known.chip.architecture, compute_capability="7.0"))
    with pytest.raises(TargetError, match=r"v100 cannot be modelled.*'7\.0'.*8\.x, 9\.x, 10\.x"):
        interconnect_of(replace(known, chip=old))
