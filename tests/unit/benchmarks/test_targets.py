"""Methods on devices that are not here: cases by name, plans by each method, orders, processes of their own.

Programs are planned for a small model, and none is compiled here: the compilers have tests in `alpa_cfp.targets`.
"""

import math
import operator
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp import target
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.targets.errors import TargetError
from alpa_cfp.targets.modelled_program import timeline_of
from alpa_cfp.targets.topology import Compiled
from benchmarks import target_methods, targets
from benchmarks.reports import Row
from benchmarks.target_methods import Case, Modelled, Outcome, Planned, Traced
from benchmarks.target_rankings import (
    SCENARIOS,
    TIE,
    Factors,
    behind,
    geometric_mean,
    order_of,
    rankings,
    scaled_s,
    steps_of,
    swaps,
)

H100 = target("h100:1x8")
# One product, beside which all devices add their numbers up.
SCHEDULED = """HloModule step, is_scheduled=true, num_partitions=8, replica_count=1

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

ENTRY %main (x: f32[4096,4096], y: f32[4096,4096], z: f32[9000000]) -> (f32[4096,4096], f32[9000000]) {
  %x = f32[4096,4096]{1,0} parameter(0)
  %y = f32[4096,4096]{1,0} parameter(1)
  %z = f32[9000000]{0} parameter(2)
  %start = f32[9000000]{0} all-reduce-start(%z), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%add
  %product = f32[4096,4096]{1,0} dot(%x, %y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %done = f32[9000000]{0} all-reduce-done(%start)
  ROOT %both = (f32[4096,4096]{1,0}, f32[9000000]{0}) tuple(%product, %done)
}
"""
COMPILED = Compiled(SCHEDULED, 0, 0, 0, 0, 0.0)

factors = st.floats(0.1, 10.0)
some_steps = st.dictionaries(st.sampled_from("abcdef"), st.floats(1e-3, 10.0), min_size=1)


def small_case(mesh: tuple[int, ...] = (8,)) -> Case:
    """GPT with two layers and all else small."""
    case = Case.of("gpt/350M@h100:1x8")
    sizes: dict[str, Any] = {"layers": 2, "hidden": 64, "heads": 4, "sequence": 64, "vocabulary": 512}
    return replace(case, model=replace(case.model, **sizes, intermediate=256), mesh=mesh)


@cache
def small_step() -> Traced:
    return target_methods.traced(small_case())


def partitioned(planned: Planned) -> Any:
    return HloModule.from_serialized(planned.module).partitioned


def row(method: str, step_s: float, *, fits: bool = True, **scenarios_s: float) -> Row:
    """The row of a method; named scenarios, with "_" for " ", take other times than the step as modelled."""
    named = {name: scenarios_s.get(name.replace(" ", "_").replace("%", ""), step_s) for name in SCENARIOS}
    return {"case": "a case", "method": method, "step_s": step_s, "fits": fits, "scenarios_s": named, "failure": ""}


@pytest.mark.parametrize("text", targets.CASES)
def test_each_case_is_a_published_model_on_a_target_that_exists_with_samples_for_all_devices(text: str) -> None:
    case = Case.of(text)
    assert case.model.samples % target(case.target).num_devices == 0
    assert math.prod(case.mesh) == target(case.target).num_devices


@pytest.mark.parametrize(
    ("name", "mesh"), [("h100:1x8", (8,)), ("h100:4x8", (4, 8)), ("v5e:4x4", (4, 4)), ("v5p:2x2x2", (8,))]
)
def test_the_usual_mesh_has_an_axis_of_hosts_or_is_the_torus(name: str, mesh: tuple[int, ...]) -> None:
    assert target_methods.usual_mesh(target(name)) == mesh


def test_a_case_may_name_another_mesh() -> None:
    assert Case.of("gpt/1.3B@h100:1x8@2x4").mesh == (2, 4)


@pytest.mark.parametrize("text", ["gpt/1.4B@h100:1x8", "gpt@h100:1x8", "gpt/1.3B", "gpt/1.3B@h100:1x8@2x4@2"])
def test_a_case_without_a_model_or_a_target_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"there is no model|is no model@target"):
        Case.of(text)


@pytest.mark.parametrize("text", ["gpt/1.3B@h100:1x9", "gpt/1.3B@h100:1x8@3x4"])
def test_a_case_for_a_machine_or_a_mesh_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(TargetError):
        Case.of(text)


def test_hand_made_plans_are_partitioned_for_all_devices_and_differ() -> None:
    found = target_methods.by_hand(small_case(), small_step(), ("data parallel", "ZeRO-2", "ZeRO-3", "Megatron"))
    programs = [partitioned(each) for each in found.values()]
    assert list(found) == ["data parallel", "ZeRO-2", "ZeRO-3", "Megatron"]
    assert {each.mesh.num_devices for each in programs} == {8}
    assert len({each.bytecode for each in programs}) == len(programs)


def test_data_parallelism_by_hand_sums_up_gradients_and_gathers_nothing() -> None:
    found = target_methods.by_hand(small_case(), small_step(), ("data parallel",))
    assert {each.kind for each in partitioned(found["data parallel"]).collectives} == {"all-reduce"}


@pytest.mark.parametrize("setting", target_methods.ilp_settings(8, 1))
def test_the_ilp_plans_without_devices(setting: tuple[tuple[int, int], bool, bool]) -> None:
    planned = target_methods.by_ilp(small_case(), small_step(), *setting)
    module = HloModule.from_serialized(planned.module)
    assert module.solved
    assert module.mesh is not None
    assert module.mesh.shape == setting[0]


def test_by_propagation_the_state_is_whole_and_the_batch_split() -> None:
    module = HloModule.from_serialized(target_methods.by_propagation(small_case(), small_step()).module)
    assert module.input_shardings is not None
    splits = [sharding.is_replicated for sharding in module.input_shardings]
    assert splits == [True] * small_step().batch_from + [False] * (len(splits) - small_step().batch_from)


def test_the_flops_of_a_model_are_those_without_rematerialisation() -> None:
    model = small_case().model
    tokens = model.samples * model.sequence
    # 6 for each parameter and token; embeddings are products with one-hot rows, which want no gradient.
    products = 6 * (12 * model.layers * model.hidden**2 + model.hidden * model.vocabulary)
    embeddings = 4 * model.hidden * (model.vocabulary + model.sequence)
    attention = 12 * model.layers * model.hidden * model.sequence
    assert small_step().flops == tokens * (products + embeddings + attention)


def test_a_step_of_all_peak_would_be_a_utilisation_of_one() -> None:
    peak = 8 * H100.chip.flops_per_s["f16"]
    assert target_methods.model_flops_utilisation(small_case(), peak, 1.0) == pytest.approx(1.0)


@pytest.mark.parametrize(("devices", "hosts", "shape"), [(8, 1, (2, 4)), (32, 4, (4, 8)), (16, 2, (2, 8))])
def test_the_ilp_is_tried_along_one_axis_and_along_two(devices: int, hosts: int, shape: tuple[int, int]) -> None:
    assert {mesh for mesh, _, _ in target_methods.ilp_settings(devices, hosts)} == {(1, devices), shape}


def test_with_factors_of_one_a_program_takes_what_the_model_says() -> None:
    assert scaled_s([COMPILED], H100, Factors()) == pytest.approx(timeline_of(COMPILED, H100, 8).step_s)


@given(factors)
def test_if_all_takes_so_many_times_as_long_so_does_the_step(factor: float) -> None:
    step_s = scaled_s([COMPILED, COMPILED], H100, Factors(factor, factor))
    assert step_s == pytest.approx(2 * factor * scaled_s([COMPILED], H100, Factors()))


@given(factors, factors)
def test_what_is_hidden_counts_once_it_takes_longer_than_what_hides_it(computing: float, communicating: float) -> None:
    line = timeline_of(COMPILED, H100, 8)
    longest = max(computing * line.computing_s, communicating * line.communicating_s)
    assert scaled_s([COMPILED], H100, Factors(computing, communicating)) == pytest.approx(longest)


@given(some_steps, st.floats(0.1, 10.0))
def test_no_order_changes_where_all_methods_change_alike(steps: dict[str, float], factor: float) -> None:
    assert swaps(steps, {name: factor * each for name, each in steps.items()}) == []


@given(some_steps, st.randoms(use_true_random=False))
def test_what_passes_another_one_was_slower_and_is_faster(steps: dict[str, float], random: Any) -> None:
    times = list(steps.values())
    random.shuffle(times)
    after = dict(zip(steps, times, strict=True))
    for first, second in swaps(steps, after):
        assert steps[first] * (1 + TIE) < steps[second]
        assert after[second] * (1 + TIE) < after[first]


@given(some_steps)
def test_an_order_is_by_the_step(steps: dict[str, float]) -> None:
    times = [steps[name] for name in order_of(steps)]
    assert times == sorted(times)


def test_methods_within_a_tie_do_not_pass_each_other() -> None:
    assert swaps({"a": 1.0, "b": 1.005}, {"a": 1.005, "b": 1.0}) == []


def test_what_does_not_fit_or_was_not_compiled_has_no_place() -> None:
    rows = [row("a", 1.0, fits=False), row("b", 2.0), {"method": "c", "fits": False, "failure": "it crashed"}]
    assert steps_of(rows) == {"b": 2.0}


def test_a_method_is_held_against_the_best_other_one() -> None:
    assert behind({"CFP": 1.1, "a": 1.0, "b": 2.0}, "CFP") == ("a", pytest.approx(1.1))
    assert behind({"a": 1.0}, "CFP") is None
    assert behind({"CFP": 1.0}, "CFP") is None


def test_rankings_name_the_scenario_in_which_another_method_is_first() -> None:
    rows = [row("a", 1.0, communication_25_dearer=1.3), row("b", 1.1)]
    assert rankings(rows) == "a < b; with communication 25% dearer b passes a."


def test_rankings_say_that_nothing_changes() -> None:
    assert rankings([row("b", 2.0), row("a", 1.0)]) == "a < b, in all scenarios."


@given(st.lists(st.floats(0.1, 10.0), min_size=1, max_size=10))
def test_the_geometric_mean_of_inverses_is_the_inverse(ratios: list[float]) -> None:
    assert geometric_mean([1 / each for each in ratios]) == pytest.approx(1 / geometric_mean(ratios))


def test_the_verdict_tells_where_cfp_is_behind_and_its_mean_to_the_ilp() -> None:
    said = targets.verdict([row("CFP", 1.1), row("Alpa's ILP", 2.2), row("ZeRO-2", 1.0)])
    assert "CFP's step takes 0.500 times as long as that of Alpa's ILP" in said
    assert "CFP takes 1.100 times as long as ZeRO-2" in said


def test_a_function_runs_in_a_process_of_its_own() -> None:
    outcome = target_methods.apart(os.getpid, limit_s=60)
    assert outcome.value not in (None, os.getpid())


@pytest.mark.parametrize(
    ("function", "args", "limit_s", "failure"),
    [
        (operator.truediv, (1, 0), 60, "ZeroDivisionError: division by zero"),
        (os._exit, (3,), 60, "its process ended with exit code 3"),
        (time.sleep, (600,), 0.5, "not done after 0.5 s"),
    ],
)
def test_what_raises_crashes_or_hangs_is_an_outcome(
    function: Callable[..., Any], args: tuple[Any, ...], limit_s: float, failure: str
) -> None:
    assert target_methods.apart(function, *args, limit_s=limit_s) == Outcome(None, failure)


class Exits:
    """A value that ends the process which reads it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (4,)


def test_a_process_that_ends_before_it_has_read_all_is_not_waited_for() -> None:
    outcome = target_methods.apart(len, Exits(), b"0" * 1_000_000, limit_s=60)
    assert outcome == Outcome(None, "its process ended with exit code 4")


def compared(monkeypatch: pytest.MonkeyPatch, answers: dict[Any, Any], methods: tuple[str, ...]) -> dict[str, Row]:
    """The rows of a case, by method, where functions that would run in other processes give these answers."""
    called = []

    def answered(function: Any, *args: Any, limit_s: float) -> Outcome[Any]:
        called.append(function)
        answer = answers[function]
        given: Any = answer(*args) if callable(answer) else answer
        return given

    monkeypatch.setattr(targets, "apart", answered)
    monkeypatch.setattr(targets, "program_digest", lambda planned: planned.module)
    rows = targets.rows_of_case(small_case(), methods, targets.Limits(60))
    return {each["method"]: each | {"compiled": called.count(targets.modelled)} for each in rows}


def result(step_s: float, memory_bytes: int = 0) -> Outcome[Modelled]:
    return Outcome(Modelled(step_s, step_s, 0.0, 0.0, 0.0, memory_bytes, 0, 1.0, dict.fromkeys(SCENARIOS, step_s)))


STEP = Outcome(Traced(b"", 0, 1, 1.0, 1.0))


def test_a_crash_costs_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        targets.traced: STEP,
        targets.by_cfp: Outcome(None, "its process ended with exit code -11"),
        targets.by_propagation: Outcome(Planned(b"p", 1.0)),
        targets.modelled: result(1.0),
    }
    rows = compared(monkeypatch, answers, ("CFP", "propagation"))
    assert rows["CFP"]["failure"] == "its process ended with exit code -11"
    assert rows["propagation"]["step_s"] == 1.0
    assert len({len(targets._cells(each)) for each in rows.values()} | {len(targets._HEADER)}) == 1


def test_of_the_ilps_settings_the_fastest_that_fits_counts_with_the_planning_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    too_much = H100.chip.memory_bytes + 1
    found = {b"1x8 True": result(1.0, too_much), b"2x4 True": result(3.0), b"1x8 False": Outcome(None, "none")}

    def planned(case: Case, step: Traced, mesh: tuple[int, int], mixed: bool, scatter: bool) -> Outcome[Planned]:
        del case, step, mixed
        name = f"{mesh[0]}x{mesh[1]} {scatter}"
        return Outcome(Planned(name.encode(), 10.0, name))

    answers = {
        targets.traced: STEP,
        targets.by_ilp: planned,
        targets.modelled: lambda module, _: found.get(module, result(4.0)),
    }
    (best,) = compared(monkeypatch, answers, ("Alpa's ILP",)).values()
    assert (best["step_s"], best["said"], best["fits"]) == (3.0, "2x4 True", True)
    assert best["planning_s"] == 10.0 * len(best["settings"])


def test_equal_programs_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        targets.traced: STEP,
        targets.by_cfp: Outcome(Planned(b"same", 1.0)),
        targets.by_propagation: Outcome(Planned(b"same", 1.0)),
        targets.modelled: result(1.0),
    }
    rows = compared(monkeypatch, answers, ("CFP", "propagation"))
    assert [each["compiled"] for each in rows.values()][-1] == 1
