"""The chips' data agree with each other, and a wrong file is an error that says which field, and what to write."""

import pickle
import re
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.targets.chips import Chip, chip_names
from alpa_cfp.targets.errors import TargetError

GPUS = ("a100", "a100-40g", "a100-pcie", "b200", "h100", "h200")
TPUS = ("v4", "v5e", "v5p", "v6e")
SIZES = st.integers(1, 48)


def data_of(name: str) -> str:
    return (resources.files("alpa_cfp.targets") / "data" / f"{name}.toml").read_text()


@pytest.fixture
def written(tmp_path: Path):
    """Writes the data of a chip with one pattern replaced, and gives the path."""

    def write(name: str, pattern: str, replacement: str) -> Path:
        text, count = re.subn(pattern, replacement, data_of(name), count=1, flags=re.MULTILINE)
        assert count == 1
        path = tmp_path / "my_chip.toml"
        path.write_text(text)
        return path

    return write


def test_gpus_and_tpus_are_known_by_name() -> None:
    assert chip_names() == GPUS + TPUS
    assert [Chip.named(name).name for name in chip_names()] == list(chip_names())


@pytest.mark.parametrize("name", GPUS)
def test_a_gpus_peak_without_tensor_cores_is_what_its_units_do_at_its_clock(name: str) -> None:
    chip = Chip.named(name)
    units = chip.cores * chip.architecture.f32_units_per_core
    assert chip.flops_per_s["f32"] == pytest.approx(2 * units * chip.clock_hz, rel=0.01)


@pytest.mark.parametrize(("name", "width"), [("v4", 128), ("v5p", 128), ("v5e", 128), ("v6e", 256)])
def test_a_tpus_peak_is_what_its_matrix_units_do_at_its_clock(name: str, width: int) -> None:
    """A core has 4 of them, by Google Cloud's pages on the chips."""
    chip = Chip.named(name)
    assert chip.flops_per_s["bf16"] == pytest.approx(2 * chip.cores * 4 * width**2 * chip.clock_hz, rel=0.005)


@pytest.mark.parametrize("name", GPUS + TPUS)
def test_narrower_types_are_not_slower(name: str) -> None:
    rates = Chip.named(name).flops_per_s
    known = [rates[each] for each in ("f32", "tf32", "bf16", "f8") if each in rates]
    assert known == sorted(known)
    assert rates.get("s8", rates["bf16"]) >= rates["bf16"]


@pytest.mark.parametrize("name", GPUS + TPUS)
def test_every_chip_names_its_sources_and_has_the_parts_of_its_kind(name: str) -> None:
    chip = Chip.named(name)
    gpu_parts = (chip.inner, chip.outer, chip.architecture)
    tpu_parts = (chip.ici, chip.slices)
    assert len(chip.sources) >= 3
    assert all(part is None for part in (tpu_parts if chip.kind == "gpu" else gpu_parts))
    assert all(part is not None for part in (gpu_parts if chip.kind == "gpu" else tpu_parts))


@pytest.mark.parametrize("name", GPUS)
def test_devices_of_a_host_reach_each_other_faster_than_other_hosts(name: str) -> None:
    chip = Chip.named(name)
    assert chip.inner.bytes_per_s > chip.outer.bytes_per_s


def test_a_chip_goes_to_another_process_and_can_be_a_key() -> None:
    for name in chip_names():
        chip = Chip.named(name)
        assert pickle.loads(pickle.dumps(chip)) == chip
        assert len({chip, pickle.loads(pickle.dumps(chip))}) == 1


def test_an_unknown_chip_is_an_error_with_the_known_ones_and_the_nearest() -> None:
    with pytest.raises(TargetError, match=r"'h10'.*Did you mean h100\?.*a100, a100-40g.*v6e") as error:
        Chip.named("h10")
    assert "my_chip.toml:1x8" in str(error.value)


def test_a_file_in_the_same_form_is_a_chip(written) -> None:
    chip = Chip.from_file(written("h100", "^memory_bytes_per_s = .*$", "memory_bytes_per_s = 4e12"))
    assert chip.memory_bytes_per_s == 4e12
    assert chip.inner == Chip.named("h100").inner


def test_a_chip_may_leave_out_rates_that_it_does_not_have(written) -> None:
    assert "tf32" not in Chip.from_file(written("h100", "^tf32 = .*$", "")).flops_per_s


@pytest.mark.parametrize(
    ("name", "pattern", "replacement", "message"),
    [
        ("h100", r"^cores = .*$", "", r"my_chip.toml lacks cores: it is a whole.*The form is that of"),
        ("h100", r"^cores = .*$", "cores = 13.2", r"cores in .*my_chip.toml is 13.2, but it is a whole number from 1"),
        ("h100", r"^cores = .*$", "cores = true", r"cores in .* is True, but it is a whole number"),
        ("h100", r"^clock_hz = .*$", "clock_hz = -1", r"clock_hz in .* is -1, but it is a number above 0"),
        ("h100", r"^clock_hz = .*$", "clock_hz = inf", r"clock_hz in .* is inf, but it is a number above 0"),
        ("h100", r"^clock_hz = .*$", "clock_hz = nan", r"clock_hz in .* is nan, but it is a number above 0"),
        ("h100", r"^kind = .*$", 'kind = "cpu"', r"kind in .* is 'cpu', but it is one of gpu, tpu"),
        ("h100", r"^kind = .*$", 'kind = "tpu"', r"lacks ici: it is a table: the links to neighbours in the torus"),
        ("h100", r"^device_kind = .*$", 'device_kind = " "', r"device_kind in .* is ' ', but it is a text"),
        ("h100", r"^bf16 = .*$", "", r"lacks flops_per_s.bf16"),
        ("h100", r"^bf16 = .*$", "bf16 = 1e15\nbf61 = 1", r"has flops_per_s.bf61, which means nothing.*bf16, f16, f32"),
        ("h100", r"^cores = .*$", "cores = 1\ncors = 1", r"has cors, which means nothing"),
        (
            "h100",
            r'^kind = "nvlink"$',
            'kind = "nvl"',
            r"inner.kind in .* is 'nvl', but it is one of nvlink, pcie",
        ),
        ("h100", r"^compute_capability = .*$", "compute_capability = 9.0", r"compiler.compute_capability in .* is 9.0"),
        ("h100", r"^compute_capability = .*$", 'compute_capability = "sm_90"', r"is 'sm_90', but it is as CUDA writes"),
        ("h100", r"^\[outer\]$", "[outwards]", r"lacks outer: it is a table: the link to GPUs of other hosts"),
        ("v5e", r"^host = .*$", 'host = "2x2x1"', r"slices.host in .* is '2x2x1', but it is a text with 2 sizes"),
        (
            "v5e",
            r"^shapes = .*$",
            "shapes = []",
            r"slices.shapes in .* is \[\], but it is a list of texts with 2 sizes",
        ),
        ("v5e", r"^dims = .*$", "dims = 4", r"ici.dims in .* is 4, but it is a whole number from 1 to 3"),
        ("v5e", r"^megacore = .*$", 'megacore = "no"', r"slices.megacore in .* is 'no', but it is true or false"),
        ("v5e", r"^sources = \[$", "sources = [1,", r"sources in .*, but it is a list of texts"),
    ],
)
def test_a_wrong_file_is_an_error_with_the_field_its_value_and_the_fix(
    written, name: str, pattern: str, replacement: str, message: str
) -> None:
    with pytest.raises(TargetError, match=message):
        Chip.from_file(written(name, pattern, replacement))


@pytest.mark.parametrize(
    ("text", "reason"),
    [("name = \n", "Invalid value .*line 1"), ("\x00", "line 1"), ("a = 1\na = 2\n", "overwrite a value")],
)
def test_a_file_that_is_no_toml_is_an_error_with_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "my_chip.toml"
    path.write_text(text)
    with pytest.raises(TargetError, match=f"my_chip.toml cannot be read as the file of a chip: .*{reason}"):
        Chip.from_file(path)


def test_a_file_that_is_not_there_or_no_text_is_an_error_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"none.toml cannot be read as the file of a chip: .*No such file"):
        Chip.from_file(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(TargetError, match=r"bytes.toml cannot be read .*utf-8"):
        Chip.from_file(tmp_path / "bytes.toml")


@pytest.mark.parametrize(
    ("name", "shape", "rings"),
    [
        ("v4", (4, 4, 8), (True, True, True)),
        ("v5p", (2, 4, 4), (False, False, False)),
        ("v5e", (8, 16), (False, True)),
        ("v6e", (16, 16), (True, True)),
        ("v6e", (4, 4), (False, False)),
    ],
)
def test_dims_are_rings_in_whole_cubes_and_where_they_span_a_pod(
    name: str, shape: tuple[int, ...], rings: tuple[bool, ...]
) -> None:
    assert Chip.named(name).ici.rings(shape) == rings


@given(st.sampled_from(TPUS), st.data())
def test_each_slice_is_made_of_whole_hosts_and_no_larger_than_a_pod(name: str, data: st.DataObject) -> None:
    slices = Chip.named(name).slices
    shape = data.draw(st.tuples(*(SIZES for _ in slices.host)))
    if slices.has(shape):
        assert all(size % part == 0 for size, part in zip(shape, slices.host_of(shape), strict=True))
        assert list(shape) == sorted(shape) or shape in slices.shapes


@pytest.mark.parametrize("name", TPUS)
def test_the_named_slices_exist_and_have_the_torus_dims(name: str) -> None:
    chip = Chip.named(name)
    assert all(chip.slices.has(shape) and len(shape) == chip.ici.dims for shape in chip.slices.shapes)
    assert set(chip.slices.one_host) <= set(chip.slices.shapes)
    assert not chip.slices.has((3,) * chip.ici.dims)
