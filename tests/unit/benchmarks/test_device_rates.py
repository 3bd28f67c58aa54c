"""Rates of a device: a name is enough to have its program again, and a run has a row for all that it reached."""

import json
import time
import zipfile
from collections import Counter
from pathlib import Path

import jax
import pytest

from benchmarks import device_rates
from benchmarks.device_programs import programs
from benchmarks.device_rates import in_turns, measured, numbers

pytestmark = pytest.mark.slow

EACH = [(name, build) for found in programs().values() for name, build in found.items()]
LIGHT = [(name, build) for name, build in EACH if not name.startswith("suite step")]
HEAVY = [(name, build) for name, build in EACH if name.startswith("suite step")]


def test_no_two_programs_have_one_name() -> None:
    assert len({name for name, _ in EACH}) == len(EACH)


@pytest.mark.parametrize(("name", "build"), LIGHT, ids=[name for name, _ in LIGHT])
def test_a_named_program_can_be_traced(name: str, build: device_rates.Build) -> None:
    program = build()
    assert jax.tree.leaves(jax.eval_shape(program.function, *program.arguments))


@pytest.mark.slow
@pytest.mark.parametrize(("name", "build"), HEAVY, ids=[name for name, _ in HEAVY])
def test_a_step_of_a_suite_can_be_traced(name: str, build: device_rates.Build) -> None:
    program = build()
    assert jax.tree.leaves(jax.eval_shape(program.function, *program.arguments))


def test_each_part_of_a_run_has_its_share_of_each_kind() -> None:
    order = in_turns(programs())
    assert sorted(name for _, name, _ in order) == sorted(name for name, _ in EACH)
    quarter = Counter(kind for kind, *_ in order[: len(order) // 4])
    for kind, found in programs().items():
        assert abs(quarter[kind] - len(found) / 4) <= 1


def test_a_run_writes_times_of_one_operation_and_what_the_compiler_counts(tmp_path: Path) -> None:
    output, texts = tmp_path / "rates.json", tmp_path / "texts.zip"
    words = ["--quick", "--only", "product|norm gradient", "--output", str(output), "--texts", str(texts)]
    assert device_rates.main(words) == 0
    report = json.loads(output.read_text())
    assert report["device"] == jax.local_devices()[0].device_kind
    by_name = {row["name"]: row for row in report["results"]}
    product = by_name.pop("product bf16 nn 64x32x16")
    assert product["flops"] >= 2 * 64 * 32 * 16 * product["times"]
    assert {row["kind"] for row in by_name.values()} == {"product", "model"}
    assert all(0 < row["min_s"] <= row["median_s"] for row in (product, *by_name.values()))
    assert zipfile.ZipFile(texts).namelist() == ["norm_gradient_tiny.hlo"]


def test_a_program_that_fails_has_a_row_that_says_why() -> None:
    def build() -> device_rates.DeviceProgram:
        raise ValueError("no such sizes")

    ((row, _),) = measured([("model", "broken", build)], 1, time.monotonic() + 100)
    assert row["error"] == "ValueError: no such sizes"


def test_nothing_is_timed_after_the_limit() -> None:
    assert list(measured(in_turns(programs(quick=True))[:1], 1, time.monotonic() - 1)) == []


def test_numbers_are_small_and_of_both_signs() -> None:
    floats, integers = numbers((jax.ShapeDtypeStruct((64, 64), "bfloat16"), jax.ShapeDtypeStruct((999,), "int32")))
    assert float(floats.min()) < -0.09 < 0.09 < float(floats.max())
    assert 0 <= int(integers.min()) < int(integers.max()) < device_rates.INTEGERS
