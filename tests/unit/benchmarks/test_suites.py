"""The suites: published sizes, the rule that makes them small, and that shapes are enough to plan them."""

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.plan.plan_report import Alternative
from alpa_cfp_bench.workloads.published import SUITES, Case
from alpa_cfp_bench.workloads.published_programs import program_of
from benchmarks import suites
from benchmarks.suite_scaling import DEVICES, FLOORS, GRANULE, LARGEST_IMAGE, WIDEST, bench_command, for_cpu, scaled

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
CASES = [case for suite in SUITES.values() for case in suite.values()]
WIDTHS = ("hidden", "intermediate", *FLOORS)
LARGEST = [list(suite.values())[-1] for suite in SUITES.values()]

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.suite}-{case.name}")
any_case = st.sampled_from(CASES)
divisors = st.integers(1, 256)


def name(case: Case) -> str:
    return f"{case.suite}-{case.name}"


@given(any_case, divisors, divisors)
def test_each_size_of_a_scaled_case_is_divisible_by_8(case: Case, width: int, depth: int) -> None:
    small = scaled(case, width, depth)
    assert {field: getattr(small, field) % GRANULE for field in WIDTHS} == dict.fromkeys(WIDTHS, 0)


@given(any_case, divisors, divisors)
def test_a_scaled_case_is_in_no_respect_larger_than_the_original(case: Case, width: int, depth: int) -> None:
    small = scaled(case, width, depth)
    assert all(getattr(small, field) <= getattr(case, field) for field in (*WIDTHS, "layers", "stages"))


@given(any_case, divisors, divisors)
def test_what_a_model_has_it_still_has_when_it_is_scaled(case: Case, width: int, depth: int) -> None:
    before, after = asdict(case), asdict(scaled(case, width, depth))
    assert {key for key, value in before.items() if value} == {key for key, value in after.items() if value}


@given(any_case, divisors, divisors, st.integers(2, 8))
def test_a_multiple_of_a_divisor_never_gives_a_larger_case(case: Case, width: int, depth: int, times: int) -> None:
    large, small = scaled(case, width, depth), scaled(case, width * times, depth * times)
    assert all(getattr(small, field) <= getattr(large, field) for field in (*WIDTHS, "layers", "stages"))


@given(any_case, divisors)
def test_sizes_keep_their_ratios_but_for_rounding_down_to_8_and_the_floors(case: Case, width: int) -> None:
    small = scaled(case, width, 1)
    for field, floor in FLOORS.items():
        exact, given = getattr(case, field) / width, getattr(small, field)
        assert exact - GRANULE <= given <= max(exact, floor)


@given(any_case, divisors)
def test_an_mlp_is_as_many_times_wider_than_the_model_as_it_was(case: Case, width: int) -> None:
    small = scaled(case, width, 1)
    if case.hidden:
        exact = case.intermediate / case.hidden * small.hidden
        assert exact - GRANULE < small.intermediate <= exact


@given(any_case, divisors, divisors)
def test_heads_divide_hidden(case: Case, width: int, depth: int) -> None:
    small = scaled(case, width, depth)
    assert not small.heads or small.hidden % small.heads == 0


@given(any_case, divisors)
def test_depth_alone_leaves_the_width_as_it_is_where_8_divides_it(case: Case, depth: int) -> None:
    small = scaled(case, 1, depth)
    assert all(getattr(small, field) == getattr(case, field) for field in FLOORS if getattr(case, field) % GRANULE == 0)


@pytest.mark.parametrize(("width", "depth"), [(0, 1), (1, 0), (-2, 1)])
def test_a_divisor_below_one_is_refused(width: int, depth: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        scaled(CASES[0], width, depth)


@each_case
def test_a_case_for_the_cpu_is_narrow_and_fits_8_devices(case: Case) -> None:
    small = for_cpu(case)
    assert small.devices <= DEVICES
    assert small.samples % small.devices == 0
    assert max(small.hidden, small.channels * small.width) <= WIDEST
    assert small.image <= LARGEST_IMAGE


@each_case
def test_the_command_of_a_case_is_one_that_alpa_cfp_bench_understands(case: Case) -> None:
    import argparse

    from alpa_cfp.cli.workload import add_workload, read_workload

    parser = argparse.ArgumentParser()
    add_workload(parser)
    command = bench_command(for_cpu(case)).removeprefix("alpa-cfp bench ")
    read = read_workload(parser.parse_args(command.split()))
    assert read.size.batch == for_cpu(case).samples


def test_steps_have_a_sample_for_each_device() -> None:
    assert {case.samples % case.devices for case in CASES} == {0}


@pytest.mark.parametrize("case", LARGEST, ids=name)
def test_the_largest_models_have_as_many_parameters_as_their_names_say(case: Case) -> None:
    said = float(case.name.removesuffix("B"))
    assert program_of(case).parameters / 1e9 == pytest.approx(said, rel=0.04)


@pytest.mark.parametrize("case", LARGEST, ids=name)
def test_a_scaled_case_is_planned_from_shapes(case: Case) -> None:
    small = replace(for_cpu(case), layers=2, stages=for_cpu(case).stages[:2], mesh=(1, 2))
    result, plan = suites.planned(small, suites.CFPOption(costs="estimate", progress=False), remat=True)
    assert plan is not None
    assert sum(result["methods"].values()) == result["blocks"] == len(plan.strategies)
    json.dumps(result)


def test_a_case_that_does_not_fit_is_a_row_that_says_so() -> None:
    small = replace(for_cpu(CASES[0]), layers=1)
    option = suites.CFPOption(costs="estimate", progress=False, memory_budget_bytes=1000)
    result, plan = suites.planned(small, option, remat=True)
    assert plan is None
    assert "no plan fits" in result["failure"]
    assert result["least_bytes"] > 1000


@pytest.mark.parametrize(
    ("roles", "kept", "said"),
    [
        (("samples", "samples"), "as used", "data parallel"),
        (("samples", "samples"), "moments split", "ZeRO-2"),
        (("samples", None), "all split", "ZeRO-3"),
        (("columns", "batch"), "as used", "tensor parallel"),
        (("samples", "rows"), "all split", "both, ZeRO-3"),
        ((None, None), "as used", "replicated"),
    ],
)
def test_strategies_go_by_the_names_that_are_used_for_them(roles: tuple, kept: str, said: str) -> None:
    alternative = Alternative(roles, kept, None, "estimated", "", 0, 0, 0, 0.0, ())
    assert suites.method_of(alternative, (2, 4)) == said


def test_axes_of_one_device_do_not_count() -> None:
    alternative = Alternative(("columns", "samples"), "as used", None, "estimated", "", 0, 0, 0, 0.0, ())
    assert suites.method_of(alternative, (1, 8)) == "data parallel"


def test_the_program_says_that_it_has_no_such_case() -> None:
    command = [sys.executable, "-m", "benchmarks.suites", "--suites", "gpt", "--cases", "41B"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "no case of gpt is called 41B" in result.stderr
