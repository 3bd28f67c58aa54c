"""A plan is explained in words that a user knows, equal layers once."""

import re
from dataclasses import replace

import pytest

from alpa_cfp.plan.plan_report import Caveat, PlanReport
from alpa_cfp.plan.signature import Recomputed, Signature
from alpa_cfp.report.text import explain
from unit.alpa_cfp.report.reports import gpt, modelled, moe, plan_of, queues, unmeasured


def test_the_heading_says_mesh_step_and_memory() -> None:
    said = explain(plan_of(gpt(2))).splitlines()
    assert said[0] == "Plan for a 2x4 mesh: axis 0 has 2 devices and axis 1 has 4. 10 blocks of 6 kinds."
    assert said[1] == "  step    8.42 ms measured, 8.10 ms predicted (3.8% too low)"
    assert said[2].startswith("  memory  900 MB on a device by the compiled program; predicted ")
    assert said[3] == "  costs   measured on the mesh; 54 programs profiled or looked up"


def test_what_a_modelled_step_hides_of_its_communication_is_one_line() -> None:
    (line,) = [line for line in explain(modelled()).splitlines() if line.startswith("  queues")]
    hidden = "of which 0.130 ms (45%) runs beside computation"
    assert line == f"  queues  computation 0.400 ms, communication 0.290 ms, {hidden}; modelled"


def test_a_modelled_step_without_communication_says_so_and_one_that_waits_for_copies_says_for_how_long() -> None:
    alone = replace(queues(), communicating_s=0.0, hidden_s=0.0, copies_s=1e-5)
    said = "  queues  computation 0.400 ms, no communication, copies are waited for 0.0100 ms; modelled\n"
    assert said in explain(modelled(alone))


def test_the_text_of_a_deep_model_is_as_long_as_that_of_a_shallow_one() -> None:
    shallow, deep = (explain(plan_of(gpt(layers))) for layers in (2, 48))
    assert len(deep.splitlines()) == len(shallow.splitlines())
    assert "encoder/layer/0-47 x 48" in deep


def test_a_block_is_said_with_its_choice_time_share_and_communication() -> None:
    said = explain(plan_of(gpt(24)))
    start = said.index("mlp/up: 0.710 ms each, 17.0 ms together (29%)")
    block = said[start : said.index("mlp/down:", start)]
    assert "weights split by column on axis 1; samples split on axis 0" in block
    assert "gradient all-reduce 4.25 MB on axis 0" in block
    assert re.search(r"instead +0\.795 ms +12% slower .* weights split by row on axis 1", block)
    assert "1 that cannot be run" in block


def test_a_plan_that_could_not_be_run_is_in_the_table_with_the_reason() -> None:
    (line,) = [line for line in explain(plan_of(gpt(2))).splitlines() if line.strip().startswith("ZeRO-3")]
    assert "failed" in line
    assert "out of memory" in line


def test_the_plan_itself_is_marked_among_those_tried() -> None:
    assert re.search(r"^  \*  best predicted +8\.42 ms +8\.10 ms", explain(plan_of(gpt(2))), re.MULTILINE)


def test_contributions_to_the_time_are_the_largest_first() -> None:
    said = explain(plan_of(gpt(24)))
    section = said[said.index("Where the time goes") :].splitlines()[1:4]
    assert [line.split("/")[-1] for line in section] == ["down x 24", "up x 24", "qvk_combined x 24"]


def test_ops_without_a_rule_are_said_with_their_block() -> None:
    assert "  sort in encoder/layer/0-1/attention/qvk_combined x 2" in explain(plan_of(gpt(2)))
    assert "Every op has a sharding rule." in explain(plan_of(unmeasured()))


def test_times_that_are_not_known_are_said_to_be_unknown() -> None:
    said = explain(plan_of(unmeasured()))
    assert "block 1: time unknown" in said
    assert "the whole program was not run" in said
    assert "estimated, nothing was measured" in said


def test_one_block_is_explained_with_all_alternatives() -> None:
    report = gpt(2)
    said = explain(plan_of(report), blocks={7}, everything=True)
    assert "mlp/up" in said
    assert "mlp/down" not in said
    assert said.count("cannot be run") == 1
    assert "RESOURCE_EXHAUSTED: out of memory while allocating <buffer>" in said
    assert "weights params/encoder/layer/0/mlp/up/kernel" in said


def test_a_plan_without_account_is_explained_from_its_strategies() -> None:
    said = explain(plan_of(None, blocks=3))
    assert "  2 blocks: split on axis 0" in said
    assert "  1 block: replicated on every device" in said
    assert "has no report" in said


@pytest.mark.parametrize("report", [gpt(2), moe(), unmeasured(), None])
def test_no_words_of_the_search_are_used(report: PlanReport | None) -> None:
    said = explain(plan_of(report), everything=True)
    assert not re.search(r"\b(factor|candidate|variable|None|nan|inf)\b", said)
    assert not re.search(r"\bkind \d", said)


def test_a_program_without_blocks_is_explained() -> None:
    empty = replace(unmeasured(), kinds=(), blocks=())
    assert "0 blocks of 0 kinds" in explain(plan_of(empty))


def test_what_the_planner_had_to_do_without_is_said_and_marked_where_it_may_cost() -> None:
    caveats = (Caveat("the link is a guess", may_cost=True), Caveat("ZeRO-3 was not compared", may_cost=False))
    text = explain(plan_of(replace(gpt(), caveats=caveats, gap_s=1e-3)))
    assert "  ! the link is a guess\n  - ZeRO-3 was not compared\n" in text
    assert "search  not exact: another plan could be predicted to be at most 1.00 ms" in text


def test_a_search_of_which_nothing_was_proved_says_so() -> None:
    assert "search  not exact; nothing was proved" in explain(plan_of(replace(gpt(), gap_s=None)))


def test_an_exact_search_that_did_without_nothing_has_no_word_on_it() -> None:
    text = explain(plan_of(gpt()))
    assert "do without" not in text
    assert "not exact" not in text


def recomputing(*parts: Recomputed) -> Signature:
    return Signature(("x", "y"), ("Auto", "Auto"), (), (), (), recomputed=parts)


def test_what_the_backward_pass_computes_again_is_one_line_with_blocks_and_bytes() -> None:
    parts = (Recomputed(0, (1, 2), False, 3_000_000), Recomputed(1, (3,), False, 1_000_000))
    plan = replace(plan_of(gpt(2)), signature=recomputing(*parts))
    (line,) = [line for line in explain(plan).splitlines() if line.startswith("  again")]
    assert line.startswith("  again   the backward pass computes blocks 1 to 3 (")
    assert line.endswith(") again and 4 MB less are kept, before they are split")


def test_parts_that_keep_their_products_and_a_plan_without_a_report_are_said_too() -> None:
    parts = (Recomputed(0, (0,), True, 2_000_000), Recomputed(2, (2,), True, 2_000_000))
    said = explain(replace(plan_of(None), signature=recomputing(*parts)))
    assert "the backward pass computes block 0; block 2 again, but for their products, and 4 MB less are kept" in said


def test_a_plan_that_computes_nothing_again_has_no_such_line() -> None:
    assert "  again" not in explain(replace(plan_of(gpt(2)), signature=recomputing()))
