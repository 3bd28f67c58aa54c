"""Two plans are compared block by block, and a difference that many blocks have is said once."""

import re
from dataclasses import replace

from alpa_cfp.plan.plan_report import PlanReport
from alpa_cfp.report.comparing import diff, differences
from alpa_cfp.strategies.block_strategy import BlockStrategy
from unit.alpa_cfp.report.reports import gpt, moe, plan_of, unmeasured


def with_mlp_split_by_samples(report: PlanReport) -> PlanReport:
    """`report` with its first halves of MLPs data parallel."""
    blocks = (replace(block, chosen=2) if block.name.endswith("mlp/up") else block for block in report.blocks)
    return replace(report, blocks=tuple(blocks))


def test_equal_plans_are_said_to_be_equal() -> None:
    assert diff(plan_of(gpt(2)), plan_of(gpt(2))) == "The plans are equal.\n"


def test_a_difference_of_many_blocks_is_said_once() -> None:
    report = gpt(24)
    said = diff(plan_of(report), plan_of(with_mlp_split_by_samples(report)))
    assert "They do different things with 24 of 98 blocks:" in said
    assert said.count("encoder/layer/0-23/mlp/up (24 blocks)") == 1
    assert re.search(r"A +0\.710 ms each .* weights split by column on axis 1; samples split on axis 0", said)
    assert re.search(r"B +0\.930 ms each .* samples split on axes 0 and 1", said)


def test_steps_and_memory_are_compared() -> None:
    report = gpt(2)
    first = plan_of(report)
    second = replace(first, measured_s=2 * (first.measured_s or 0.0), needed_bytes=1_000_000_000)
    said = diff(first, second)
    assert re.search(r"step, measured +8\.42 ms +16\.8 ms +2\.0 times as slow", said)
    assert re.search(r"memory, compiled +900 MB +1 GB +100 MB more", said)


def test_plans_that_differ_in_costs_only_do_the_same_with_every_block() -> None:
    first = plan_of(gpt(2))
    said = diff(first, replace(first, predicted_s=1.0))
    assert "They do the same with every block: only costs differ." in said


def test_plans_of_different_programs_are_compared_by_the_names_of_blocks() -> None:
    said = diff(plan_of(gpt(2)), plan_of(gpt(3), program="cd" * 32))
    assert "different programs" in said
    assert "They do the same with every block." in said
    assert "Only B has 4 blocks of these names:" in said
    assert re.search(r"encoder/layer/2/mlp/up +0\.710 ms +weights split by column", said)
    assert "encoder/layer/0/" not in said


def test_programs_without_a_common_block_are_told_apart_by_both() -> None:
    found = differences(plan_of(gpt(2)), plan_of(unmeasured(), program="cd" * 32))
    assert {each.name for each in found if each.first is None} == {"block 0", "block 1"}
    assert {each.name for each in found if each.second is None} >= {"lm_head", "embeddings/word"}


def test_plans_for_different_meshes_say_so() -> None:
    first = plan_of(moe())
    said = diff(first, replace(first, mesh_shape=(1, 8)))
    assert "A is for a 2x4 mesh, B for a 1x8 mesh" in said
    assert re.search(r"A .*; samples split on axis 0", said)


def test_plans_without_account_are_compared_by_position() -> None:
    first = plan_of(None, blocks=4)
    strategies = (first.strategies[0], BlockStrategy((1, 1)), *first.strategies[2:])
    said = diff(first, replace(first, strategies=strategies))
    assert "They do different things with 1 of 4 blocks: 1." in said
    assert "A and B have no report" in said


def test_a_plan_without_account_is_not_compared_with_another_program() -> None:
    said = diff(plan_of(gpt(2)), plan_of(None, program="cd" * 32))
    assert "Their blocks cannot be compared: B has no report" in said
