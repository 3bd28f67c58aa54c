"""Published step times: the rows of the file, the pairs that are compared, and the formulas of a whole step.

No program is compiled here: the compilers have tests in `alpa_cfp.targets`.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.targets.interconnect import collective_s
from alpa_cfp.targets.links import interconnect_of
from benchmarks import step_models, step_numbers, step_tables
from benchmarks.reports import Row
from benchmarks.step_models import ModelledStep, Seconds
from benchmarks.step_numbers import Compared, Measured, Parallelism
from benchmarks.step_programs import Stage, micro_batch_program, update_program, weights_of

pytestmark = pytest.mark.slow

ROWS = step_numbers.measured()
TABLE = {
    "source": "a source",
    "address": "https://example.org",
    "step": "8 samples",
    "model": "small",
    "target": "h100:1x4",
    "element_type": "bf16",
    "summed_in": "f32",
    "remat": False,
    "sequence_parallel": False,
    "splits_state": False,
}
SMALL: dict[str, Any] = {"kind": "gpt", "layers": 4, "hidden": 64, "heads": 4, "kv_heads": 4, "intermediate": 128}

ratios = st.floats(0.01, 100.0)


def row(tensor: int = 1, data: int = 4, pipeline: int = 1, **fields: Any) -> Measured:
    """A row of the first table of the file, on 4 GPUs, with another plan."""
    sizes = Parallelism(tensor, data, pipeline)
    given: dict[str, Any] = {"parallelism": sizes, "target": "h100:1x4", "micro_batch": 1, "batch": 8, "seconds": 1.0}
    return replace(ROWS[0], **given | fields)


def plan(sizes: tuple[int, int, int], measured_s: float, modelled_s: float) -> Compared:
    return Compared(Parallelism(*sizes), str(sizes), measured_s, modelled_s)


def result(sizes: tuple[int, int, int], measured_s: float, modelled_s: float | None, **fields: Any) -> Row:
    """A row of the benchmark's results; without `modelled_s` it could not be made."""
    found = {"source": "a", "address": "", "model": "m", "target": "h100:1x4", "step": "8 samples", "batch": 8}
    found |= {"parallelism": list(sizes), "micro_batch": 1, "measured_s": measured_s, "failure": ""}
    return (
        found
        | ({"failure": "why"} if modelled_s is None else {"modelled_s": modelled_s, "by_stages_s": modelled_s})
        | fields
    )


def written(path: Path, rows: list[list[float]], **fields: Any) -> Path:
    """A file of numbers with one table."""
    lines = ['[models."small"]', *(f"{k} = {json.dumps(v)}" for k, v in SMALL.items())]
    lines += ["sequence = 32", "vocabulary = 100", "[[tables]]"]
    lines += [f"{key} = {json.dumps(value)}" for key, value in (TABLE | fields).items()]
    path.write_text("\n".join([*lines, f"rows = {json.dumps(rows)}"]))
    return path


def test_every_row_of_the_file_can_be_made_on_devices_that_can_be_bought() -> None:
    assert [row.problem() for row in ROWS if row.problem()] == []


def test_every_row_and_everything_left_out_has_an_address_of_one_commit_and_what_is_left_out_a_reason() -> None:
    others = step_numbers.left_out()
    addresses = {each.address for each in (*ROWS, *others)}
    assert all(address.startswith("https://github.com/") and len(address.split("/")[6]) == 40 for address in addresses)
    assert all(each.reason and each.rows > 0 for each in others)


@pytest.mark.parametrize("source", dict.fromkeys(row.source for row in ROWS))
def test_each_source_has_pairs_of_plans_whose_times_differ(source: str) -> None:
    groups = {row.compared_with for row in ROWS if row.source == source}
    plans = {group: [Compared.of(row, 1.0) for row in ROWS if row.compared_with == group] for group in groups}
    assert sum(len(step_numbers.pairs(found)) for found in plans.values()) >= 5


def test_a_row_is_read_with_its_table(tmp_path: Path) -> None:
    (found,) = step_numbers.measured(written(tmp_path / "numbers.toml", [[2, 1, 2, 2, 8, 12.5]]))
    assert found.parallelism == Parallelism(2, 1, 2)
    assert (found.micro_batch, found.batch, found.micro_batches, found.seconds) == (2, 8, 4, 0.0125)
    assert (found.model.name, found.training.summed_in, found.problem()) == ("small", "f32", "")


def test_the_vocabulary_is_padded_to_whole_parts_of_128() -> None:
    assert row(4).vocabulary % (4 * 128) == 0
    assert 0 <= row(4).vocabulary - row(4).model.vocabulary < 4 * 128


def test_links_between_hosts_are_those_of_the_source() -> None:
    own = next(each for each in ROWS if each.outer)
    outer = own.devices.chip.outer
    assert outer is not None
    assert (outer.bytes_per_s, outer.shared_by) == (12.5e9, 2)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([1, 2, 1, 1, 8, 1.0], "not the devices"),
        ([1, 4, 1, 3, 8, 1.0], "no whole number of micro-batches"),
        ([1, 1, 4, 1, 8, 1.0], "no equal stages"),
        ([4, 1, 1, 1, 8, 1.0], "heads are not split"),
    ],
)
def test_a_row_that_cannot_be_made_says_why(tmp_path: Path, rows: list[float], reason: str) -> None:
    (found,) = step_numbers.measured(written(tmp_path / "numbers.toml", [rows]))
    broken = replace(found, model=replace(found.model, layers=6, kv_heads=3))
    assert reason in broken.problem()


def test_pairs_that_differ_by_no_more_than_a_tenth_have_no_order() -> None:
    plans = [plan((1, 4, 1), 1.0, 1.0), plan((4, 1, 1), 1.1, 2.0), plan((1, 1, 4), 1.2, 3.0)]
    assert [(pair.slower, pair.faster) for pair in step_numbers.pairs(plans)] == [("(1, 1, 4)", "(1, 4, 1)")]


def test_plans_of_equal_sizes_are_no_pair_whatever_their_micro_batches() -> None:
    assert step_numbers.pairs([plan((1, 4, 1), 1.0, 1.0), plan((1, 4, 1), 2.0, 3.0)]) == []


@given(measured=ratios, modelled=ratios)
def test_a_pair_agrees_where_the_slower_plan_is_modelled_slower(measured: float, modelled: float) -> None:
    found = step_numbers.pairs([plan((1, 4, 1), 1.0, 1.0), plan((4, 1, 1), measured, modelled)])
    if found:
        assert found[0].measured >= 1.1
        assert found[0].agrees == ((measured > 1) == (modelled > 1) and modelled != 1)


def test_of_each_plan_the_micro_batch_that_was_fastest_is_compared() -> None:
    rows = [row(1, 4, 1, seconds=2.0), row(1, 4, 1, micro_batch=2, seconds=1.5), row(4, 1, 1, seconds=3.0)]
    elsewhere = row(1, 4, 1, seconds=9.0, step="another")
    assert step_numbers.fastest([*rows, elsewhere]) == [rows[1], rows[2], elsewhere]


def test_the_share_of_no_pairs_is_none() -> None:
    assert step_numbers.agreement([]) is None


@given(micro_batches=st.integers(1, 64), stages=st.integers(1, 32))
def test_a_pipeline_takes_as_many_turns_as_micro_batches_and_stages_less_one(micro_batches: int, stages: int) -> None:
    assert step_models.pipeline_s(1.0, 0.5, micro_batches, stages) == (micro_batches + stages - 1) * 1.5


def test_a_step_has_turns_of_the_slowest_stage_or_each_stage_as_long_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    # A layer takes 1 s, and the head 2 s.
    monkeypatch.setattr(
        step_models, "_micro_batch", lambda _, stage: Seconds(stage.layers + 2.0 * stage.last, 0.0, 0.0, 0.0, 0.0)
    )
    monkeypatch.setattr(step_models, "_update_s", lambda *_: 0.0)
    found = step_models.modelled_step(row(1, 1, 4, model=replace(ROWS[0].model, layers=12)))
    turns = 8 + 3
    assert found.step_s == pytest.approx(turns * (5 + found.sends_s))
    assert found.by_stages_s == pytest.approx(8 * 5 + 3 * 3 + turns * found.sends_s)


def test_without_a_pipeline_nothing_is_sent_and_the_stage_is_the_model() -> None:
    assert step_models.send_s(row()) == 0.0
    assert step_models.stages_of(12, 1) == (Stage(12, first=True, last=True),)


def test_stages_have_equal_layers_and_the_head_is_in_the_last() -> None:
    first, last = step_models.stages_of(12, 4)
    assert (first.layers, first.first, first.last) == (3, True, False)
    assert (last.layers, last.first, last.last) == (3, False, True)


def test_replicas_are_the_devices_between_tensor_parallel_neighbours_and_stages() -> None:
    assert step_models.replica_groups(Parallelism(2, 2, 2)) == ((0, 2), (1, 3), (4, 6), (5, 7))


def test_the_gradients_of_one_replica_are_not_summed() -> None:
    assert step_models.gradient_sum_s(row(4, 1, 1), 10**9) == 0.0


def test_gradients_are_all_reduced_or_with_a_split_state_scattered_and_weights_gathered() -> None:
    whole, groups = row(1, 4, 1), ((0, 1, 2, 3),)
    links, numbers = interconnect_of(whole.devices), 10**8
    plain = replace(whole, training=replace(whole.training, splits_state=False))
    assert step_models.gradient_sum_s(plain, numbers) == collective_s("all-reduce", 4e8, groups, links)
    scattered_s = collective_s("reduce-scatter", 4e8, groups, links)
    gathered_s = collective_s("all-gather", 2e8 / 4, groups, links)
    assert step_models.gradient_sum_s(whole, numbers) == scattered_s + gathered_s


def test_more_layers_are_on_the_line_through_two_depths() -> None:
    few, more = Seconds(1.0, 0.8, 0.3, 0.1, 2.0), Seconds(1.5, 1.2, 0.4, 0.1, 3.0)
    assert few.extrapolated(more, (2, 4), 12).modelled == pytest.approx((3.5, 2.8, 0.8, 0.1))


@pytest.mark.parametrize("kind", ["gpt", "llama"])
def test_a_device_has_its_part_of_what_is_split_and_all_else_whole(kind: str) -> None:
    model = replace(ROWS[0].model, kind=kind, hidden=64, heads=8, kv_heads=4, intermediate=128)
    weights = weights_of(model, Stage(1, first=True, last=True), 1024)
    assert weights["0 qkv"].per_device(4) == 64 * 1 * 4 * 8
    assert weights["0 down"].per_device(4) == 32 * 64
    assert weights["norm scale"].per_device(4) == 64
    assert ("head" in weights) == (kind == "llama")


@pytest.mark.parametrize("kind", ["gpt", "llama"])
@pytest.mark.parametrize("stage", [Stage(2, True, True), Stage(1, True, False), Stage(1, False, True)])
@pytest.mark.parametrize("remat", [False, True])
def test_a_micro_batch_of_each_stage_lowers_and_adds_to_its_sums_in_place(kind: str, stage: Stage, remat: bool) -> None:
    model = replace(ROWS[0].model, kind=kind, hidden=32, heads=4, kv_heads=2, intermediate=64, sequence=16)
    training = replace(ROWS[0].training, remat=remat)
    bytecode = micro_batch_program(model, training, stage, 128, 2, tuple(jax.devices("cpu")[:2]))
    assert b"tf.aliasing_output" in bytecode or b"jax.buffer_donor" in bytecode


def test_the_update_lowers_for_any_number_of_weights() -> None:
    assert update_program(1025, ROWS[0].training, tuple(jax.devices("cpu")[:1]))


def test_the_verdict_counts_pairs_within_a_step_and_names_those_in_another_order() -> None:
    rows = [result((1, 4, 1), 1.0, 1.0), result((4, 1, 1), 2.0, 1.5), result((1, 1, 4), 4.0, 0.5)]
    elsewhere = [result((1, 4, 1), 9.0, 0.1, step="16 samples"), result((2, 2, 1), 1.0, None)]
    words = step_tables.verdict([*rows, *elsewhere])
    assert "1 of 3 pairs (33.3%) are in the measured order (goal of 90%: missed)" in words
    assert "measured 4.00, modelled 0.50" in words


def test_a_row_that_was_not_made_is_listed_with_its_reason() -> None:
    cells = step_tables._cells(result((1, 4, 1), 1.0, None))
    assert cells[-1] == "why"
    other = {"source": "a", "address": "", "what": "experts", "rows": 12, "failure": "no such model"}
    assert step_tables._cells(other)[1:2] + step_tables._cells(other)[-1:] == ["experts (12 rows)", "no such model"]


def test_a_row_is_told_with_all_parts_of_its_step(monkeypatch: pytest.MonkeyPatch) -> None:
    part = Seconds(0.2, 0.15, 0.1, 0.05, 3.0)
    found = ModelledStep(1.5, 1.4, part, 0.01, 0.02, 0.03)
    monkeypatch.setattr(step_tables, "modelled_step", lambda _: found)
    made = step_tables._result(row())
    cells = step_tables._cells(made)
    assert len(cells) == len(step_tables._HEADER)
    assert cells[7:15] == ["1500.0", "+50%", "1400.0", "200.0", "100.0", "50.0", "10.0", "20.0"]
