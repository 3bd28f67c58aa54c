"""Collectives on GPUs by NCCL's model: its own logged numbers, and where a group lies."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from alpa_cfp.errors import OptionError
from alpa_cfp.targets.gpu_links import GpuInterconnect, HostLink, Network
from alpa_cfp.targets.nccl import nccl_s

SIZES = st.integers(0, 2**33)
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
MIB = 2**20


def machine(name: str = "h100", hosts: int = 4, **network: float) -> GpuInterconnect:
    generation, rate, reduces, nic = {
        "a100": ("ampere", 300e9, False, 25e9),
        "h100": ("hopper", 450e9, True, 50e9),
        "b200": ("blackwell", 900e9, True, 50e9),
    }[name]
    link = HostLink("nvlink", rate, reduces=reduces)
    return GpuInterconnect(generation, hosts, 8, link, Network(**{"bytes_per_s": nic, **network}))


def across(hosts: int, per_host: int) -> tuple[int, ...]:
    """The first devices of the first hosts."""
    return tuple(host * 8 + device for host in range(hosts) for device in range(per_host))


@pytest.mark.parametrize(
    ("kind", "hosts", "per_host", "logged_us"),
    [
        ("all-gather", 2, 1, 11.6),
        ("all-gather", 2, 8, 23.3),
        ("all-gather", 4, 2, 18.7),
        ("all-gather", 8, 8, 81.5),
        ("all-gather", 32, 8, 314.3),
        ("all-reduce", 2, 1, 16.6),
        ("all-reduce", 2, 8, 25.2),
        ("all-reduce", 8, 8, 45.2),
        ("all-reduce", 32, 8, 65.2),
    ],
)
def test_an_empty_collective_takes_the_least_latency_that_nccl_logs(
    kind: str, hosts: int, per_host: int, logged_us: float
) -> None:
    """The log of NCCL 2.27.5 for H100 (meta-pytorch/autoparallel, `cost_models/nccl_cost_model.py`)."""
    seconds = nccl_s(kind, 0, [across(hosts, per_host)], machine(hosts=hosts))
    assert seconds * 1e6 == pytest.approx(logged_us, abs=0.06)


@pytest.mark.parametrize(
    ("kind", "hosts", "per_host", "logged_gb_s"),
    [
        ("all-gather", 2, 1, 96.0),
        ("all-gather", 2, 4, 219.4),
        ("all-gather", 4, 2, 109.7),
        ("all-gather", 32, 4, 193.5),
        ("all-reduce", 4, 1, 32.0),
        ("all-reduce", 8, 2, 51.2),
    ],
)
def test_many_bytes_go_by_the_bandwidth_that_nccl_logs(
    kind: str, hosts: int, per_host: int, logged_gb_s: float
) -> None:
    links, group = machine(hosts=hosts), across(hosts, per_host)
    # The whole, of which an all-gather's operand is a part; so many bytes that a ring is the fastest.
    part = len(group) if kind == "all-gather" else 1
    seconds = [nccl_s(kind, whole / part, [group], links) for whole in (2**36, 2**37)]
    assert 2**36 / (seconds[1] - seconds[0]) / 1e9 == pytest.approx(logged_gb_s, rel=1e-3)


@given(st.sampled_from(("a100", "h100", "b200")), st.sampled_from(KINDS), st.sampled_from((2, 4)), SIZES)
def test_a_group_within_a_host_is_never_slower_than_across_hosts(name: str, kind: str, hosts: int, size: int) -> None:
    within = nccl_s(kind, size, [tuple(range(8))], machine(name))
    assert within <= nccl_s(kind, size, [across(hosts, 8 // hosts)], machine(name)) * (1 + 1e-12)


@given(st.sampled_from(KINDS), st.permutations(range(8)), st.permutations(range(8)), st.integers(1, 8), SIZES)
def test_the_order_and_the_choice_of_devices_of_a_host_change_nothing(
    kind: str, first: list[int], second: list[int], count: int, size: int
) -> None:
    links = machine()
    plain = nccl_s(kind, size, [across(2, count)], links)
    permuted = (*first[:count], *(8 + device for device in second[:count]))
    assert nccl_s(kind, size, [permuted], links) == pytest.approx(plain, rel=1e-12)


@given(st.sampled_from([("a100", 1), ("a100", 2), ("h100", 1), ("h100", 2), ("b200", 1)]), st.integers(1, 8), SIZES)
def test_an_all_reduce_takes_at_least_its_reduce_scatter(where: tuple[str, int], per_host: int, size: int) -> None:
    """On many hosts it does not: only all-reduces have trees, of low latency, and switches that add up."""
    name, hosts = where
    assume(hosts * per_host > 1)
    group, links = across(hosts, per_host), machine(name)
    scattered = nccl_s("reduce-scatter", size, [group], links)
    assert scattered <= nccl_s("all-reduce", size, [group], links) * (1 + 1e-12)


@given(st.sampled_from(KINDS), SIZES)
def test_groups_across_the_same_hosts_do_not_share_cards_of_their_own(kind: str, size: int) -> None:
    columns = [tuple(range(start, 32, 8)) for start in range(8)]
    together = nccl_s(kind, size, columns, machine())
    assert together == pytest.approx(nccl_s(kind, size, columns[:1], machine()), rel=1e-12)


def test_groups_that_have_a_card_together_share_its_rate() -> None:
    columns = [tuple(range(start, 32, 8)) for start in range(8)]
    own, shared = machine(), machine(devices_per_nic=2)
    assert nccl_s("all-gather", 2**30, columns[:1], shared) == nccl_s("all-gather", 2**30, columns[:1], own)
    assert nccl_s("all-gather", 2**30, columns, shared) == pytest.approx(
        2 * nccl_s("all-gather", 2**30, columns, own), rel=0.01
    )
    assert nccl_s("all-to-all", 2**30, columns, shared) == pytest.approx(
        2 * nccl_s("all-to-all", 2**30, columns, own), rel=0.01
    )


def test_a_switch_that_adds_up_makes_a_large_all_reduce_faster() -> None:
    """480 against 367 GB/s of bus bandwidth for 8 H200 (S. Bekman, Machine Learning Engineering)."""
    plain = GpuInterconnect("hopper", 1, 8, HostLink("nvlink", 450e9))
    adds = GpuInterconnect("hopper", 1, 8, HostLink("nvlink", 450e9, reduces=True))
    bus = [1.75 * 2**34 / nccl_s("all-reduce", 2**34, [range(8)], links) / 1e9 for links in (plain, adds)]
    assert bus == pytest.approx([367.2, 480.0], rel=0.05)


def test_rates_depend_on_where_a_group_lies() -> None:
    """The same four devices' worth of bytes: within a host, on two hosts, on four."""
    seconds = [nccl_s("all-gather", 64 * MIB, [across(hosts, 4 // hosts)], machine()) for hosts in (1, 2, 4)]
    assert seconds[1] > 3 * seconds[0]
    assert seconds[2] > 1.9 * seconds[1]


def test_an_uneven_group_has_the_cards_of_its_smallest_part() -> None:
    uneven, even = (0, 1, 2, 3, 8), (0, 8)
    assert nccl_s("all-gather", 2**30, [uneven], machine()) > nccl_s("all-gather", 2**30, [even], machine())


def test_a_send_to_another_host_goes_by_the_card() -> None:
    within, between = (nccl_s("collective-permute", 2**30, [pair], machine()) for pair in ((0, 1), (0, 8)))
    assert 2**30 / between == pytest.approx(48e9, rel=0.01)
    assert between > 5 * within


def test_a_card_sends_and_receives_at_the_same_time() -> None:
    there, both = ([(0, 8)], [(0, 8), (8, 0)])
    assert nccl_s("collective-permute", 2**30, both, machine()) == nccl_s("collective-permute", 2**30, there, machine())
    shared = machine(devices_per_nic=2)
    assert nccl_s("collective-permute", 2**30, [(0, 8), (1, 9)], shared) == pytest.approx(
        2 * nccl_s("collective-permute", 2**30, there, shared), rel=0.01
    )


def test_by_pcie_bytes_to_devices_near_and_far_share_a_link() -> None:
    link = HostLink("pcie", 31.5e9)
    links = GpuInterconnect("ampere", 2, 8, link, Network(25e9))
    assert nccl_s("all-to-all", 2**30, [across(2, 8)], links) > nccl_s("all-to-all", 2**30, [range(8)], links)


def test_the_networks_latency_counts_for_each_message() -> None:
    near, far = machine(), machine(latency_s=1e-5)
    group = [across(4, 8)]
    # By LL trees: up and down two levels of hosts.
    assert nccl_s("all-reduce", 0, group, far) - nccl_s("all-reduce", 0, group, near) == pytest.approx(4e-5)


def test_links_that_cannot_be_are_refused() -> None:
    link = HostLink("nvlink", 300e9)
    with pytest.raises(OptionError, match="4 hosts need one"):
        GpuInterconnect("ampere", 4, 8, link)
    with pytest.raises(OptionError, match="for which NCCL has tables"):
        GpuInterconnect("volta", 1, 8, link)
    with pytest.raises(OptionError, match="it must be positive"):
        GpuInterconnect("ampere", 1, 0, link)
    with pytest.raises(OptionError, match="positive number of bytes"):
        HostLink("nvlink", 0.0)
    with pytest.raises(OptionError, match="one of nvlink, pcie"):
        HostLink("ethernet", 1e9)
    with pytest.raises(OptionError, match="seconds from zero"):
        Network(1e9, latency_s=-1.0)
    with pytest.raises(OptionError, match="one device at least"):
        Network(1e9, devices_per_nic=0)
    with pytest.raises(OptionError, match="a link has one channel at least"):
        HostLink("nvlink", 300e9, channels=0)
