"""The simple rules for parameters: what each splits, on any mesh and for any shape."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_on_jax import errors
from alpa_on_jax.xla_extension.auto_sharding.heuristics import shard_with_heuristic
from alpa_on_jax.xla_extension.auto_sharding.options import SolverOptions

HEURISTICS = ("shard-largest", "shard-first", "shard-last")
SHAPES = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 16]), max_size=3).map(tuple)
MESHES = st.sampled_from([(1, 4), (4, 1), (2, 2), (2, 4), (1, 3)])


def sharded(shape: Sequence[int], mesh: tuple[int, int], heuristic: str, *, donated: bool = False) -> HloModule:
    """The module of `-x`, where `x` is a parameter of `shape`, after the rule `heuristic`."""
    tensor = f"tensor<{''.join(f'{size}x' for size in shape)}f32>"
    text = f"func.func @main(%x: {tensor}) -> {tensor} {{ %y = stablehlo.negate %x : {tensor} return %y : {tensor} }}"
    module = HloModule.from_stablehlo("negate", text, [donated])
    options = SolverOptions(mesh, (1.0, 1.0), (1.0, 0.1), force_simple_heuristic=heuristic)
    shard_with_heuristic(module, options)
    return module


def split(module: HloModule) -> tuple[tuple[int, ...], ...]:
    """For each dim of the parameter the mesh axes that split it."""
    assert module.input_shardings is not None
    return tuple(tuple(axis.index for axis in axes) for axes in module.input_shardings[0].dims)


@given(SHAPES, MESHES, st.sampled_from(HEURISTICS))
def test_a_parameter_is_split_evenly_or_not_at_all(
    shape: tuple[int, ...], mesh: tuple[int, int], heuristic: str
) -> None:
    module = sharded(shape, mesh, heuristic)
    assert module.input_shardings is not None
    (sharding,) = module.input_shardings
    assert sharding.divides(shape)
    parts = [sharding.num_shards(dim) for dim in range(len(shape))]
    assert sharding.is_replicated or max(parts) > 1


@given(SHAPES, MESHES, st.sampled_from(HEURISTICS), st.booleans())
def test_a_result_lies_as_the_parameter_whose_buffer_it_takes_and_otherwise_whole(
    shape: tuple[int, ...], mesh: tuple[int, int], heuristic: str, donated: bool
) -> None:
    module = sharded(shape, mesh, heuristic, donated=donated)
    assert module.input_shardings is not None
    assert module.output_shardings is not None
    assert module.output_shardings[0].is_replicated or donated
    assert module.output_shardings[0] == module.input_shardings[0] or not donated


@pytest.mark.parametrize(
    ("heuristic", "mesh", "shape", "expected"),
    [
        ("shard-first", (2, 4), (8, 3), ((0, 1), ())),
        ("shard-last", (2, 4), (3, 8), ((), (0, 1))),
        ("shard-first", (2, 4), (4, 8), ((), ())),
        ("shard-largest", (1, 4), (4, 8, 16), ((), (), (1,))),
        ("shard-largest", (4, 1), (8, 8), ((0,), ())),
        ("shard-largest", (2, 4), (4, 16, 8), ((), (1,), (0,))),
        ("shard-largest", (2, 4), (8, 8), ((1,), (0,))),
        ("shard-largest", (2, 4), (16,), ((0, 1),)),
        ("shard-largest", (2, 4), (16, 3), ((), ())),
        ("shard-largest", (2, 4), (), ()),
    ],
)
def test_a_rule_splits_the_dims_that_alpa_would_split(
    heuristic: str, mesh: tuple[int, int], shape: tuple[int, ...], expected: tuple[tuple[int, ...], ...]
) -> None:
    # With equal sizes the first dim counts as the larger one; on a 2D mesh the larger dim goes along axis 1.
    assert split(sharded(shape, mesh, heuristic)) == expected


def test_an_unknown_rule_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(errors.HeuristicError, match=r"'shard-middle'.*'shard-largest', 'shard-first', 'shard-last'"):
        sharded((8, 8), (2, 4), "shard-middle")
