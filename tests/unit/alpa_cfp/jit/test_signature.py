"""A signature is a value, and describes shardings as `PartitionSpec`s do."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

from alpa_cfp.codec import decode, encode
from alpa_cfp.jit.meshes import of_whole_axes, spec_of
from alpa_cfp.plan.signature import Placed, Recomputed, Signature
from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis, LogicalMesh

names = st.lists(st.sampled_from(["data", "model"]), unique=True, max_size=2).map(tuple)
placed = st.builds(
    Placed,
    st.text(max_size=8),
    st.lists(st.integers(0, 2**40), max_size=3).map(tuple),
    st.sampled_from(["float32", "bfloat16", "key<fry>"]),
    st.lists(names, max_size=3).map(tuple),
    st.booleans(),
)
recomputed = st.builds(
    Recomputed, st.integers(0, 99), st.lists(st.integers(0, 99)).map(tuple), st.booleans(), st.integers(0, 2**40)
)
signatures = st.builds(
    Signature,
    st.just(("data", "model")),
    st.just(("Auto", "Explicit")),
    st.lists(st.integers(0, 7)).map(tuple),
    st.lists(placed, max_size=3).map(tuple),
    st.lists(placed, max_size=3).map(tuple),
    st.booleans(),
    st.lists(recomputed, max_size=3).map(tuple),
)


@given(signatures)
def test_a_signature_that_is_read_back_is_an_equal_one(signature: Signature) -> None:
    assert decode(Signature, encode(signature)) == signature


@pytest.mark.parametrize(
    ("field", "value"),
    [("axis_names", "xy"), ("devices", [0.5]), ("inputs", [{}]), ("outputs", [3]), ("axis_types", None)],
)
def test_a_signature_with_a_damaged_field_is_refused(field: str, value: Any) -> None:
    whole = encode(Signature(("x",), ("Auto",), (0, 1), (), ()))
    with pytest.raises((KeyError, TypeError)):
        decode(Signature, {**whole, field: value})


@pytest.mark.parametrize("value", [{"donated": 1}, {"dims": [["x"], "x"]}, {"dims": [[3]]}, {"shape": [True]}])
def test_an_argument_with_a_damaged_field_is_refused(value: dict[str, Any]) -> None:
    whole = encode(Signature(("x",), ("Auto",), (), (Placed("args[0]", (8,), "int32", (("x",),)),), ()))
    with pytest.raises((KeyError, TypeError)):
        decode(Signature, {**whole, "inputs": [{**whole["inputs"][0], **value}]})


@pytest.mark.parametrize(
    ("dims", "spec"),
    [
        ((), PartitionSpec()),
        (((), ()), PartitionSpec()),
        (((), ("x",), ()), PartitionSpec(None, "x")),
        ((("y", "x"), ()), PartitionSpec(("y", "x"))),
    ],
)
def test_a_partition_spec_ends_with_the_last_dim_that_is_split(dims: Any, spec: PartitionSpec) -> None:
    assert spec_of(dims) == spec


def test_of_a_sharding_only_whole_axes_are_kept() -> None:
    mesh = LogicalMesh((4, 2))
    whole, part, other = Axis(0, 1, 4), Axis(0, 1, 2), Axis(1, 1, 2)
    assert of_whole_axes(ArraySharding(mesh, ((whole, other), ())), 2).dims == ((whole, other), ())
    assert of_whole_axes(ArraySharding(mesh, ((other, part), ())), 2).dims == ((other,), ())
    # Split major to minor: without its major part, a minor axis would split it otherwise.
    assert of_whole_axes(ArraySharding(mesh, ((part, other), ())), 2).dims == ((), ())
    assert of_whole_axes(ArraySharding(mesh, ((whole,), (other,))), 1).dims == ((whole,), ())
