"""A text names so many devices of a chip; one that names no machine that there is is an error with the fix."""

import pickle
import re
from importlib import resources
from math import prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.targets.chips import Chip, chip_names
from alpa_cfp.targets.errors import TargetError
from alpa_cfp.targets.target import Target, target

GPUS = [name for name in chip_names() if Chip.named(name).kind == "gpu"]
TPUS = [name for name in chip_names() if Chip.named(name).kind == "tpu"]


@pytest.mark.parametrize(
    ("text", "hosts", "devices_per_host", "torus"),
    [
        ("h100:1x8", 1, 8, None),
        ("a100:4x8", 4, 8, None),
        ("a100-40g:1x16", 1, 16, None),
        ("b200:16x4", 16, 4, None),
        ("v5e:1x1", 1, 1, (1, 1)),
        ("v5e:2x4", 1, 8, (2, 4)),
        ("v5e:4x4", 4, 4, (4, 4)),
        ("v5p:2x2x2", 2, 4, (2, 2, 2)),
        ("v4:4x4x8", 32, 4, (4, 4, 8)),
        ("v6e:16x16", 64, 4, (16, 16)),
    ],
)
def test_a_text_names_hosts_and_devices_or_a_slice(
    text: str, hosts: int, devices_per_host: int, torus: tuple[int, ...] | None
) -> None:
    found = target(text)
    assert (found.name, found.hosts, found.devices_per_host, found.torus) == (text, hosts, devices_per_host, torus)
    assert found.chip == Chip.named(text.split(":")[0])
    assert pickle.loads(pickle.dumps(found)) == found


@given(st.sampled_from(GPUS), st.integers(1, 64), st.integers(1, 8))
def test_gpus_are_hosts_times_devices_of_each(name: str, hosts: int, devices: int) -> None:
    found = target(f"{name}:{hosts}x{devices}")
    assert (found.hosts, found.devices_per_host, found.num_devices) == (hosts, devices, hosts * devices)


@pytest.mark.parametrize("name", TPUS)
def test_each_slice_has_as_many_devices_as_its_torus(name: str) -> None:
    for shape in Chip.named(name).slices.shapes:
        found = target(f"{name}:{'x'.join(map(str, shape))}")
        assert found.torus == shape
        assert found.num_devices == prod(shape)


def test_letters_and_spaces_around_do_not_matter() -> None:
    assert target(" H100:1X8 ") == target("h100:1x8")


def test_a_chips_file_is_named_by_its_path_even_one_with_a_colon(tmp_path: Path) -> None:
    folder = tmp_path / "a:b"
    folder.mkdir()
    text = (resources.files("alpa_cfp.targets") / "data" / "h100.toml").read_text()
    path = folder / "my_chip.toml"
    path.write_text(re.sub("^name = .*$", 'name = "mine"', text, flags=re.MULTILINE))
    found = target(f"{path}:2x8")
    assert (found.name, found.num_devices) == ("mine:2x8", 16)
    assert found == Target.from_file(path, "2x8")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h100", "'h100' is no target: it has no chip or no sizes.*h100:1x8 is 1 host with 8 GPUs"),
        ("", "it has no chip or no sizes"),
        (":1x8", "it has no chip or no sizes"),
        (8, "8 is no target: it is no text"),
        ("h100:8", "GPUs have 2 sizes, hosts x devices of each"),
        ("h100:1x8x1", "GPUs have 2 sizes"),
        ("h100:", "'' are no sizes"),
        ("h100:0x8", "'0x8' are no sizes"),
        ("h100:1x-8", "'1x-8' are no sizes"),
        ("h100:1*8", r"'1\*8' are no sizes"),
        ("v5e:8", "a slice of v5e has 2 sizes, one for each dim"),
        ("v5p:2x4", "a slice of v5p has 3 sizes"),
        ("g100:1x8", "there is no chip called 'g100'.*known ones are a100"),
        ("h100:1x16", "a host has up to 8 h100, and not 16.*h100:2x8 is 2 hosts with 8 each"),
        ("v5e:3x3", "there is no slice of 3x3 v5e. Its slices are 1x1, 2x2, 2x4"),
        ("v5e:4x2", "there is no slice of 4x2 v5e. Write v5e:2x4"),
        ("v5p:1x2x2", "Write v5p:2x2x1"),
        ("v5p:4x8x4", "Write v5p:4x4x8"),
        ("v4:4x4x6", "multiples of 4 in ascending order with up to 4,096 chips"),
        ("v4:16x16x32", "there is no slice of 16x16x32 v4"),
        ("no_such_chip.toml:1x8", "no_such_chip.toml cannot be read as the file of a chip"),
        ("chips/mine:1x8", "mine cannot be read as the file of a chip"),
    ],
)
def test_a_text_that_names_no_machine_is_an_error_with_the_fix(text: object, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        target(text)


@pytest.mark.parametrize(
    ("shape", "names"), [((2, 2), ()), ((2, 8), ("x", "y")), ((8,), ("x", "y")), ((2, 2, 4), ()), ((2, 4), ("x",))]
)
def test_a_mesh_of_other_devices_than_the_targets_is_an_error_with_their_number(
    shape: tuple[int, ...], names: tuple[str, ...]
) -> None:
    with pytest.raises(TargetError, match=r"h100:1x8 has 8 devices, and a mesh of it has as many: not the sizes"):
        target("h100:1x8").mesh(shape, names)
