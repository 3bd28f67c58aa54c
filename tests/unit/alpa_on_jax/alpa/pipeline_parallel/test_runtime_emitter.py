"""What stages send under the schedule `1f1b_overlap_friendly`: each variable once to a mesh, in the order of results.

The plan that the emitter reads is a stand-in with the attributes that it looks at; variables are strings.
"""

from types import SimpleNamespace
from typing import Any

import pytest
from alpa.pipeline_parallel.runtime_emitter import OverlapFriendlyPipelineInstEmitter


def stage(invars: str, outvars: str) -> SimpleNamespace:
    """A stage of variables that are letters; the spec of each is its letter in capitals."""
    return SimpleNamespace(invars=list(invars), outvars=list(outvars), input_sharding_specs=list(invars.upper()))


def sent(
    stages: list[SimpleNamespace], meshes: list[int], order: list[str], dummies: dict[str, str] | None = None
) -> Any:
    """What the emitter finds for `stages`, which lie on `meshes` and compute their results in the given order."""
    emitter = object.__new__(OverlapFriendlyPipelineInstEmitter)
    emitter.stages = stages
    emitter.global_invars, emitter.grad_dummy_invars = ["g"], dummies or {}
    emitter.schedule = SimpleNamespace(stage_placement=lambda number: {meshes[number]})
    emitter.stage_send_vars = [[] for _ in stages]
    emitter._compile_sharding_specs = lambda: None
    emitter._get_stage_send_vars(order)
    return emitter.stage_send_vars


def test_a_stage_sends_what_other_meshes_need_in_the_order_in_which_it_computes_it() -> None:
    stages = [stage("g", "abc"), stage("bag", "d"), stage("cd", "e")]
    assert sent(stages, [0, 1, 1], ["cba", "d", "e"]) == [[(1, ["c", "b", "a"], ["C", "B", "A"])], [], []]


def test_a_mesh_gets_a_variable_once_and_its_own_never() -> None:
    stages = [stage("g", "a"), stage("a", "b"), stage("ab", "c"), stage("ca", "d")]
    assert sent(stages, [0, 1, 1, 0], ["a", "b", "c", "d"]) == [[(1, ["a"], ["A"])], [], [(0, ["c"], ["C"])], []]


def test_a_variable_that_several_stages_have_is_sent_by_the_first() -> None:
    stages = [stage("g", "a"), stage("g", "a"), stage("a", "b")]
    assert sent(stages, [0, 1, 2], ["a", "a", "b"]) == [[(2, ["a"], ["A"])], [], []]


def test_sends_to_one_mesh_are_joined_only_where_they_follow_each_other() -> None:
    stages = [stage("g", "abc"), stage("ac", "d"), stage("b", "e")]
    expected = [(1, ["a"], ["A"]), (2, ["b"], ["B"]), (1, ["c"], ["C"])]
    assert sent(stages, [0, 1, 2], ["abc", "d", "e"])[0] == expected


def test_accumulators_that_start_as_zeros_are_not_sent() -> None:
    stages = [stage("g", "a"), stage("az", "b")]
    assert sent(stages, [0, 1], ["a", "b"], {"z": "b"}) == [[(1, ["a"], ["A"])], []]


def test_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    sent([stage("g", "a"), stage("a", "b")], [0, 1], ["a", "b"])
    assert capsys.readouterr().out == ""
