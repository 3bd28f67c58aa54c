"""The address at which other processes reach this machine."""

from typing import Any

import pytest

from alpa_cfp.spmd.distributed import coordination


@pytest.mark.parametrize("coordinator", ["127.0.0.1:1234", "localhost:1234"])
def test_a_coordinator_on_the_loopback_is_reached_from_the_loopback(coordinator: str) -> None:
    assert coordination.ip_towards(coordinator) == "127.0.0.1"


def test_the_name_of_this_machine_that_stands_for_the_loopback_does_not_give_the_loopback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # As where /etc/hosts has "127.0.1.1 node1".
    addresses = {"node1": "127.0.0.1", "192.0.2.1": "10.1.2.3"}
    monkeypatch.setattr(coordination, "_ip_towards", lambda host, port: addresses[host])
    assert coordination.ip_towards("node1:1234") == "10.1.2.3"


def test_a_machine_without_a_network_has_the_loopback_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def ip_towards(host: str, port: int) -> Any:
        if host != "node1":
            raise OSError("unreachable")
        return "127.0.0.1"

    monkeypatch.setattr(coordination, "_ip_towards", ip_towards)
    assert coordination.ip_towards("node1:1234") == "127.0.0.1"


def test_a_process_that_is_alone_is_not_initialized() -> None:
    assert not coordination.is_initialized()
