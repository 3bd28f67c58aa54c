"""HLO texts have the names, channels and shapes that alpa's readers look for, and nothing else changes."""

import jax.numpy as jnp
import numpy as np
import pytest
from alpa.util import count_communication_primitives
from jax.lax import optimization_barrier as reshard

from alpa_cfp.spmd.compile.backend import optimized_text
from alpa_cfp.spmd.ir.hlo_text import with_alpa_parameter_names, with_channels
from alpa_cfp.spmd.partition import partition
from unit.alpa_cfp.spmd.helpers import MESH_2X4, load, split
from unit.alpa_cfp.spmd.partition.solved_programs import solve

TEXT = """HloModule step, entry_computation_layout={(f32[4]{0}, f32[4]{0})->f32[4]{0}}

%fused (Arg_0.1: f32[4]) -> f32[4] {
  %Arg_0.1 = f32[4]{0} parameter(0)
  ROOT %negate = f32[4]{0} negate(%Arg_0.1)
}

ENTRY %main.3 (Arg_0.1: f32[4], Arg_1.1: f32[4]) -> f32[4] {
  %Arg_1.1 = f32[4]{0} parameter(1)
  %Arg_0.1 = f32[4]{0} parameter(0)
  %Arg_0.11 = f32[4]{0} fusion(%Arg_0.1), kind=kLoop, calls=%fused
  ROOT %add = f32[4]{0} add(%Arg_0.11, %Arg_1.1)
}
"""


def test_the_entrys_parameters_are_named_by_their_numbers() -> None:
    entry = with_alpa_parameter_names(TEXT).partition("ENTRY")[2]
    assert "(param: f32[4], param.1: f32[4]) -> f32[4]" in entry
    assert "%param.1 = f32[4]{0} parameter(1)" in entry
    assert "ROOT %add = f32[4]{0} add(%Arg_0.11, %param.1)" in entry


def test_other_computations_keep_their_names() -> None:
    assert with_alpa_parameter_names(TEXT).partition("ENTRY")[0] == TEXT.partition("ENTRY")[0]


def test_a_text_in_which_a_new_name_is_taken_stays_as_it_is() -> None:
    taken = TEXT.replace("%add", "%param.1")
    assert with_alpa_parameter_names(taken) == taken


def test_a_collective_without_a_channel_gets_one_of_its_own() -> None:
    lines = [
        "%a = f32[8]{0} all-gather(%p), channel_id=4, replica_groups={{0,1}}, dimensions={0}",
        "%b = (f32[2]{0}, f32[2]{0}) all-to-all(%q, %r), replica_groups={{0,1}}",
        "%c = s32[2]{0} collective-permute(%s), source_target_pairs={{0,1},{1,0}}",
    ]
    first, second, third = with_channels("\n".join(lines)).splitlines()
    assert first == lines[0]
    assert second == "%b = (f32[2]{0}, f32[2]{0}) all-to-all(%q, %r), channel_id=5, replica_groups={{0,1}}"
    assert third == "%c = s32[2]{0} collective-permute(%s), channel_id=6, source_target_pairs={{0,1},{1,0}}"


def test_what_is_no_collective_stays_as_it_is() -> None:
    text = "%g = f32[4]{0} get-tuple-element(%all-reduce.1), index=0\n%f = f32[8]{0} fusion(%all-gather.1), calls=%c"
    assert with_channels(text) == text


X, W = (np.random.default_rng(3).normal(size=shape).astype(np.float32) for shape in ((8, 16), (16, 8)))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param(("", "y"), ("", ""), (1, 0, 1, 0, 0), id="all_gather"),
        pytest.param(("y", ""), ("", "y"), (1, 0, 0, 0, 1), id="all_to_all"),
        pytest.param(("xy", ""), ("yx", ""), (1, 0, 0, 0, 0), id="collective_permute"),
    ],
)
def test_alpa_counts_the_resharding_of_a_compiled_program(before, after, expected) -> None:
    old, new = split(MESH_2X4, *before), split(MESH_2X4, *after)
    module = solve(lambda x: jnp.tanh(reshard(x)), (X,), [old], [new], [new, new])
    assert count_communication_primitives(_compiled(module)) == expected


def test_a_compiled_program_says_the_shapes_of_what_its_ops_take() -> None:
    rows = split(MESH_2X4, "y", "")
    module = solve(jnp.tanh, (X,), [rows], [rows], [rows])
    assert "tanh(f32[2,16]" in _compiled(module)


def test_alpa_counts_combined_sums_once() -> None:
    whole, rows = split(MESH_2X4, "", ""), split(MESH_2X4, "y", "")
    columns = split(MESH_2X4, "", "y")
    module = solve(lambda x, w: (x @ w, (x + 1) @ w), (X, W), [columns, rows], [whole] * 2, [whole, columns, whole])
    text = _compiled(module)
    assert count_communication_primitives(text) == (1, 1, 0, 0, 0)
    assert count_communication_primitives(text, ignore_scalar_all_reduce=True) == (1, 1, 0, 0, 0)


def test_alpa_counts_a_split_sum_as_a_reduce_scatter() -> None:
    whole, rows = split(MESH_2X4, "", ""), split(MESH_2X4, "y", "")
    inputs = [split(MESH_2X4, "", "y"), rows]
    module = solve(lambda x, w: reshard(x @ w), (X, W), inputs, [rows], [whole, rows])
    assert count_communication_primitives(_compiled(module)) == (1, 0, 0, 1, 0)


def test_alpa_can_leave_out_sums_of_scalars() -> None:
    module = solve(jnp.sum, (X,), [split(MESH_2X4, "", "y")], [split(MESH_2X4)], [split(MESH_2X4)])
    text = _compiled(module)
    assert count_communication_primitives(text) == (1, 1, 0, 0, 0)
    assert count_communication_primitives(text, ignore_scalar_all_reduce=True) == (0, 0, 0, 0, 0)


def _compiled(module) -> str:
    """The optimised HLO of the program that Shardy's passes make of a solved module."""
    return optimized_text(load(module, partition(module))._executable)
