"""The memory of devices on which stages of a pipeline are to be."""

import logging
from types import SimpleNamespace

import pytest

from alpa_cfp.alpa import devices

DEVICES = devices.AlpaDevices(SimpleNamespace(virtual_mesh=SimpleNamespace(num_devices=4)))


def _memory(monkeypatch: pytest.MonkeyPatch, platform: str, stats: dict[str, int] | None) -> int:
    device = SimpleNamespace(platform=platform, device_kind="a device", memory_stats=lambda: stats)
    monkeypatch.setattr(devices, "is_here", lambda virtual: True)
    monkeypatch.setattr(devices.jax, "local_devices", lambda: [device])
    return DEVICES.memory_bytes()


def test_a_device_that_says_its_memory_is_taken_at_its_word(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert _memory(monkeypatch, "gpu", {"bytes_limit": 77}) == 77
    assert not caplog.records


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_one_that_does_not_has_a_part_of_the_machines_with_a_warning_unless_it_shares_that(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, platform: str
) -> None:
    with caplog.at_level(logging.WARNING):
        assert _memory(monkeypatch, platform, None) > 0
    warned = "the memory of a device is unknown: a stage's budget is a part of the machine's" in caplog.text
    assert warned == (platform != "cpu")
