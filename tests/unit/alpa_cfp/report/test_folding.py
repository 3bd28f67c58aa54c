"""Equal layers are folded, whatever the depth, and no block is lost."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.plan.plan_report import PlanReport
from alpa_cfp.report.folding import FoldedPlan, fold, span
from unit.alpa_cfp.report.reports import gpt, moe, plan_of


def choosing(report: PlanReport, choices: dict[int, int]) -> PlanReport:
    """`report` with other choices for some blocks."""
    blocks = (replace(each, chosen=choices.get(i, each.chosen)) for i, each in enumerate(report.blocks))
    return replace(report, blocks=tuple(blocks))


def test_equal_layers_are_one_segment_with_copies() -> None:
    assert [(each.title, each.count) for each in fold(gpt(24))] == [
        ("embeddings/word", 1),
        ("encoder/layer/0-23", 24),
        ("lm_head", 1),
    ]


def test_layers_by_turns_are_folded_together() -> None:
    (segment,) = fold(moe())
    assert segment.count == 3
    assert segment.blocks[0].full_name == "layer_{0,2,4}/attention"


def test_a_layer_with_another_choice_is_not_folded_with_its_neighbours() -> None:
    report = choosing(gpt(6), {1 + 4 * 2: 3})
    assert [each.count for each in fold(report)] == [1, 2, 1, 3, 1]
    assert [each.title for each in fold(report)][1:4] == ["encoder/layer/0-1", "encoder/layer/2", "encoder/layer/3-5"]


@given(st.integers(1, 5), st.dictionaries(st.integers(0, 20), st.integers(0, 4)))
def test_the_copies_of_all_segments_are_all_blocks_in_order(layers: int, choices: dict[int, int]) -> None:
    report = choosing(gpt(layers), choices)
    found = [block for segment in fold(report) for copy in segment.copies for block in copy]
    assert found == list(range(len(report.blocks)))


@given(st.integers(1, 5), st.dictionaries(st.integers(0, 20), st.integers(0, 4)))
def test_copies_have_the_same_kinds_and_choices(layers: int, choices: dict[int, int]) -> None:
    report = choosing(gpt(layers), choices)
    for segment in fold(report):
        own = {tuple((report.blocks[i].kind, report.blocks[i].chosen) for i in copy) for copy in segment.copies}
        assert len(own) == 1


def test_moves_between_equal_blocks_are_added_up() -> None:
    report = gpt(24)
    moves = FoldedPlan(plan_of(report), report, fold(report)).moves()
    assert moves[0].count == 24
    assert sum(each.time_s for each in moves) == pytest.approx(sum(each.time_s for each in report.moves))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a/0/b", "a/1/b", "a/2/b"], "a/0-2/b"),
        (["h_1", "h_3"], "h_{1,3}"),
        ([f"h{i}" for i in range(0, 20, 2)], "h{0,2..18}"),
        (["a", "a (2)"], "a to a (2)"),
        (["a/b", "a"], "a/b to a"),
        (["a"], "a"),
    ],
)
def test_equal_blocks_have_one_name(names: list[str], said: str) -> None:
    assert span(names) == said
