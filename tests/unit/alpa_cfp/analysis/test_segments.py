"""The blocks of a model are cut at its repeats, and equal runs of blocks are of one kind, however deep the model is."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from alpa.pipeline_parallel.primitive_def import pipeline_p
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.analysis.blocks import find_blocks
from alpa_cfp.analysis.graph import BARRIER, Graph
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.analysis.segments import Segments, digest_of, digests_of, find_segments, repeated_runs
from alpa_cfp.spmd.module.hlo_module import HloModule
from unit.alpa_cfp.analysis.llama import LlamaSize, lower
from unit.alpa_cfp.analysis.programs import graph_of

pytestmark = pytest.mark.slow


@cache
def llama(layers: int, *, remat: bool = False) -> Segments:
    """The segments of a decoder's training step."""
    module = HloModule.from_stablehlo("llama", lower(LlamaSize(layers=layers), remat=remat))
    return find_segments(find_blocks(read_graph(module.bytecode)))


@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("layers", [2, 4, 9])
def test_a_decoder_of_any_depth_has_three_kinds_of_segments(layers: int, remat: bool) -> None:
    segments = llama(layers, remat=remat)
    assert len(segments.kinds) == len({segment.kind for segment in segments.segments}) == 3
    assert len(segments.segments) == layers + 1


def test_a_layer_is_a_segment_of_four_blocks() -> None:
    first, *layers, last = llama(9).segments
    assert {len(segment.blocks) for segment in layers} == {4}
    assert len({segment.kind for segment in layers}) == 1
    assert first.kind != last.kind


@pytest.mark.parametrize("layers", [2, 9])
def test_every_block_and_every_op_of_one_is_in_one_segment(layers: int) -> None:
    segments = llama(layers)
    assert [block for segment in segments.segments for block in segment.blocks] == list(
        range(len(segments.blocks.blocks))
    )
    ops = sorted(op for segment in segments.segments for op in segment.ops)
    assert ops == [op for op, block in enumerate(segments.blocks.block_of_op) if block is not None]


def test_segments_of_one_kind_are_equal_op_for_op() -> None:
    segments = llama(9)
    graph = segments.blocks.graph
    for segment in segments.segments:
        model = segments.segments[segment.kind]
        for op, other in zip(segment.ops, model.ops, strict=True):
            assert graph.ops[op].name == graph.ops[other].name
            assert graph.ops[op].rule == graph.ops[other].rule
            assert [graph.shape(v) for v in graph.ops[op].results] == [graph.shape(v) for v in graph.ops[other].results]


def _scaled_products(*scales: float) -> Segments:
    """Segments of a program of one product of matrices after the other, each scaled."""
    square = "tensor<8x8xf32>"
    lines = [
        f"""%a{i} = stablehlo.dot_general %y{i}, %w{i}, contracting_dims = [1] x [0] : ({square}, {square}) -> {square}
            %c{i} = stablehlo.constant dense<{scale}> : {square}
            %y{i + 1} = stablehlo.multiply %a{i}, %c{i} : {square}"""
        for i, scale in enumerate(scales)
    ]
    weights = ", ".join(f"%w{i}: {square}" for i in range(len(scales)))
    text = f"""func.func @main(%y0: {square}, {weights}) -> {square} {{
      {" ".join(lines)}
      return %y{len(scales)} : {square}
    }}"""
    return find_segments(find_blocks(read_graph(HloModule.from_stablehlo("tested", text).bytecode)))


def test_equal_blocks_in_a_row_are_segments_of_one_kind() -> None:
    # The first one works on a parameter, which may be kept in another way than a value that is computed.
    assert [segment.kind for segment in _scaled_products(2.0, 2.0, 2.0).segments] == [0, 1, 1]


def test_blocks_that_differ_in_a_constant_are_no_repeat() -> None:
    assert [segment.kind for segment in _scaled_products(2.0, 3.0).segments] == [0]


@given(st.lists(st.integers(0, 3), max_size=24))
def test_a_sequence_is_cut_into_runs_without_gaps(sequence: list[int]) -> None:
    runs = repeated_runs(sequence)
    assert all(start < stop for start, stop in runs)
    assert [0, *(stop for _, stop in runs)] == [*(start for start, _ in runs), len(sequence)]


@given(
    st.lists(st.integers(10, 19), max_size=3, unique=True),
    st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True),
    st.integers(2, 9),
    st.lists(st.integers(20, 29), max_size=3, unique=True),
)
def test_each_repetition_between_two_ends_is_a_run(
    head: list[int], unit: list[int], count: int, tail: list[int]
) -> None:
    runs = repeated_runs([*head, *unit * count, *tail])
    assert [(start, stop) for start, stop in runs if stop - start == len(unit) and start >= len(head)][:count] == [
        (len(head) + i * len(unit), len(head) + (i + 1) * len(unit)) for i in range(count)
    ]


@pytest.mark.parametrize("count", range(2, 7))
def test_what_differs_at_the_ends_does_not_break_a_repeat(count: int) -> None:
    # 0 is changed by what is before it, 3 by what is behind it.
    sequence = [7, 70, 1, 2, 3] + [0, 1, 2, 3] * (count - 2) + [0, 1, 2, 30, 8]
    runs = repeated_runs(sequence)
    assert len({tuple(sequence[start:stop]) for start, stop in runs}) == 3
    assert all(stop == start for (_, stop), (start, _) in pairwise(runs))


def _step(marked: Callable[..., Sequence[Any]], weights: Sequence[Any], x: Any) -> Any:
    """A step of two layers of one shape; `marked` takes values and the name of what begins or ends there."""
    *used, inside = marked(*weights, x, name="layer", mark_type="start")
    grads = jax.grad(lambda weights: jnp.sum(jnp.tanh(jnp.tanh(inside @ weights[0]) @ weights[1])))(used)
    # Alpa's marks have their values in an order of their own.
    second, first = marked(grads[1], grads[0], name="layer", mark_type="end")
    first_w, second_w, second, first = marked(*weights, second, first, name="update", mark_type="start")
    return marked(first_w - 0.1 * first, second_w - 0.1 * second, name="update", mark_type="end")


def test_the_marks_of_a_pipeline_leave_each_block_the_ops_that_it_has_without_them() -> None:
    weight, x = jax.ShapeDtypeStruct((16, 16), jnp.float32), jax.ShapeDtypeStruct((8, 16), jnp.float32)
    with_marks, without = (
        _ops_of_blocks(graph_of(partial(_step, marked), (weight, weight), x))
        for marked in (pipeline_p.bind, lambda *values, **_: values)
    )
    # Each layer's update in the layer's block, too.
    assert with_marks == without
    assert len(with_marks) == 2


def test_the_order_of_what_goes_through_a_mark_does_not_matter() -> None:
    def digest(*order: str) -> bytes:
        def step(**values: Any) -> Any:
            marked = dict(
                zip(order, pipeline_p.bind(*map(values.get, order), name="layer", mark_type="start"), strict=True)
            )
            return jnp.tanh(marked["x"] @ marked["w"])

        shapes = {"w": (16, 16), "x": (8, 16)}
        arrays = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
        graph = graph_of(lambda arrays: step(**arrays), arrays)
        (found,) = digests_of(graph, [[op.index for op in graph.ops]])
        return found

    assert digest("w", "x") == digest("x", "w")


def _ops_of_blocks(graph: Graph) -> list[Counter[str]]:
    blocks = find_blocks(graph)
    return [
        Counter(graph.ops[op].name for op in (*block.members, *block.glue) if graph.ops[op].name != BARRIER)
        for block in blocks.blocks
    ]


def _recurrence(weight: jax.Array, x: jax.Array, places: Sequence[int]) -> jax.Array:
    """An unrolled recurrence, whose steps take the inputs at these places."""
    state = jnp.zeros((x.shape[0], 16))
    for place in places:
        state = jnp.tanh(jax.lax.optimization_barrier(state) @ weight + x[:, place])
    return state.sum()


def _graph_of_recurrence(*places: int) -> Graph:
    weight, x = jax.ShapeDtypeStruct((16, 16), jnp.float32), jax.ShapeDtypeStruct((8, 6, 16), jnp.float32)
    return graph_of(jax.value_and_grad(partial(_recurrence, places=places), (0, 1)), weight, x)


def test_parts_that_slice_at_other_places_are_equal() -> None:
    first, second, other = (
        digests_of(graph, [[op.index for op in graph.ops]])
        for graph in (_graph_of_recurrence(0, 1, 2), _graph_of_recurrence(5, 0, 3), _graph_of_recurrence(0, 1))
    )
    assert first == second
    assert first != other


def test_programs_that_slice_at_other_places_are_not_equal() -> None:
    assert digest_of(_graph_of_recurrence(0, 1)) != digest_of(_graph_of_recurrence(0, 2))
