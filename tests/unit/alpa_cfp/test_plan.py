"""A plan is a value: its text is the same for equal plans, and what cannot be read is refused with a reason."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp import Plan
from alpa_cfp.errors import PlanError
from alpa_cfp.search import MemoryUse
from alpa_cfp.strategies import BlockStrategy

PLAN = Plan("ab" * 32, (2, 4), (BlockStrategy((0, None)), BlockStrategy((None, 3))), 0.1, MemoryUse(1, 2, 3), "measure")

factors = st.tuples(*[st.none() | st.integers(0, 9)] * 2)
plans = st.builds(
    Plan,
    st.text("0123456789abcdef", min_size=64, max_size=64),
    st.just((2, 4)),
    st.lists(st.builds(BlockStrategy, factors), max_size=5).map(tuple),
    st.floats(0, 1e6),
    st.builds(MemoryUse, st.integers(0, 2**50), st.integers(0, 2**50), st.integers(0, 2**50)),
    st.sampled_from(["measure", "estimate"]),
)


@given(plans)
def test_a_plan_that_is_read_back_is_an_equal_one(plan: Plan) -> None:
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.to_json() == plan.to_json()


def test_a_plan_is_kept_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    PLAN.save(path)
    assert Plan.load(path) == PLAN


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 0}'])
def test_what_is_no_plan_is_refused_with_where_it_came_from(tmp_path: Path, text: str) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text)
    with pytest.raises(PlanError, match=r"plan\.json is no plan"):
        Plan.load(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [("strategies", [["a"]]), ("strategies", 3), ("memory", {"state": 1}), ("mesh_shape", [2.5]), ("program", None)],
)
def test_a_plan_with_a_damaged_field_is_refused(field: str, value: Any) -> None:
    with pytest.raises(PlanError):
        Plan.from_json(json.dumps({**json.loads(PLAN.to_json()), field: value}))
