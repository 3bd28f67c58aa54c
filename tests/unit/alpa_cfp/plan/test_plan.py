"""A plan is a value: its text is the same for equal plans, and what cannot be read is refused with a reason."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpa_cfp import Plan
from alpa_cfp.errors import PlanError
from alpa_cfp.plan.signature import Placed, Signature
from alpa_cfp.search import MemoryUse
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding
from unit.alpa_cfp.report.drawn import plan_reports

PLAN = Plan("ab" * 32, (2, 4), (BlockStrategy((0, None)), BlockStrategy((None, 3))), 0.1, MemoryUse(1, 2, 3), "measure")

SIGNATURE = Signature(
    axis_names=("data", "model"),
    axis_types=("Auto", "Auto"),
    devices=(1, 0, 2, 3, 4, 5, 6, 7),
    inputs=(
        Placed("args[0]['w']", (16, 8), "float32", (("data",), ("model",)), donated=True),
        Placed("kwargs['x']", (64,), "bfloat16", (("model", "data"),)),
    ),
    outputs=(Placed("result", (16, 8), "float32", ((), ("model",))),),
)

factors = st.tuples(*[st.none() | st.integers(0, 9)] * 2)
plans = st.builds(
    Plan,
    st.text("0123456789abcdef", min_size=64, max_size=64),
    st.just((2, 4)),
    st.lists(st.builds(BlockStrategy, factors, st.sampled_from(StateSharding)), max_size=5).map(tuple),
    st.floats(0, 1e6),
    st.builds(MemoryUse, st.integers(0, 2**50), st.integers(0, 2**50), st.integers(0, 2**50)),
    st.sampled_from(["measure", "estimate"]),
    st.sampled_from([None, SIGNATURE]),
    st.none() | st.floats(0, 1e6),
    st.none() | st.integers(0, 2**50),
    st.none() | plan_reports(),
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


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b'{"format": 0}', b"\xff\xfe\x00", b"[" * 100_000], ids=range(7)
)
def test_what_is_no_plan_is_refused_with_where_it_came_from(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(PlanError, match=r"plan\.json is no plan"):
        Plan.load(path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("strategies", [["a"]]),
        ("strategies", 3),
        ("strategies", [{"factors": [0, None], "kept": "half split"}]),
        ("predicted_s", 10**400),
        ("memory", {"state": 1}),
        ("mesh_shape", [2.5]),
        ("program", None),
        ("signature", {}),
        ("account", {}),
    ],
)
def test_a_plan_with_a_damaged_field_is_refused(field: str, value: Any) -> None:
    with pytest.raises(PlanError):
        Plan.from_json(json.dumps({**json.loads(PLAN.to_json()), field: value}))


def test_a_plan_says_by_path_where_arguments_and_results_lie() -> None:
    plan = dataclasses.replace(PLAN, signature=SIGNATURE)
    assert plan.in_shardings == {
        "args[0]['w']": PartitionSpec("data", "model"),
        "kwargs['x']": PartitionSpec(("model", "data")),
    }
    assert plan.out_shardings == {"result": PartitionSpec(None, "model")}
    assert PLAN.in_shardings == PLAN.out_shardings == {}


def test_a_plan_says_on_which_devices_arguments_and_results_lie() -> None:
    plan = dataclasses.replace(PLAN, signature=SIGNATURE)
    made_on = plan.named_shardings()["result"].mesh
    assert [device.id for device in made_on.devices.flat] == list(SIGNATURE.devices)
    assert made_on.axis_names == ("data", "model")
    other = Mesh(np.array(jax.devices()).reshape(2, 4), ("data", "model"))
    assert plan.named_shardings(other)["args[0]['w']"] == NamedSharding(other, PartitionSpec("data", "model"))
    with pytest.raises(PlanError, match="made through alpa"):
        PLAN.named_shardings()


def test_a_plan_made_on_devices_that_are_not_here_asks_for_some() -> None:
    plan = dataclasses.replace(PLAN, signature=dataclasses.replace(SIGNATURE, devices=tuple(range(90, 98))))
    with pytest.raises(PlanError, match=r"does not have: \[90, .*Say on which devices"):
        plan.named_shardings()
