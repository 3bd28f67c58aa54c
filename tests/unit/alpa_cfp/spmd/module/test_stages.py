"""Cutting a program at pipeline markers: the stages, run one after the other, compute what the program computes."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.module.stages import slice_stages, stage_ends
from alpa_cfp.spmd.partition import partition
from unit.alpa_cfp.spmd.helpers import (
    MESH_2X2,
    annotate,
    assert_parts_equal,
    lower,
    marked,
    run,
    split,
    values_of,
)

X, W = (np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8) * scale for scale in (1, 3))


def annotated(function: Any, arguments: tuple[Any, ...], names: list[str]) -> HloModule:
    """The annotated module of `function`, its optimization barriers marked with `names` in order."""
    module = marked(lower(function, arguments), names)
    return annotate(module, MESH_2X2, [split(MESH_2X2, "x", ""), split(MESH_2X2, "", "y")][: len(arguments)])


def _two_stages(x: jax.Array, w: jax.Array) -> jax.Array:
    x1, w1 = jax.lax.optimization_barrier((x, w))
    (y,) = jax.lax.optimization_barrier((jax.numpy.tanh(x1 @ w1) * np.float32(2),))
    y2, w2 = jax.lax.optimization_barrier((y, w))
    (z,) = jax.lax.optimization_barrier((y2 @ w2.T + 1,))
    return z


NAMES = ["first$start", "first$end", "second$start", "second$end"]


def test_the_stages_one_after_the_other_compute_what_the_program_computes():
    (first_name, first), (second_name, second) = slice_stages(annotated(_two_stages, (X, W), NAMES))
    assert (first_name, second_name) == ("first", "second")
    (between,) = values_of(lambda x, w: jax.numpy.tanh(x @ w) * 2, (X, W))
    assert_parts_equal(run(first, partition(first), (X, W)), [between])
    assert_parts_equal(run(second, partition(second), (between, W)), values_of(_two_stages, (X, W)))


def test_what_crosses_from_one_stage_into_another_has_one_sharding():
    module = annotated(_two_stages, (X, W), NAMES)
    (_, first), (_, second) = slice_stages(module)
    assert first.output_shardings == second.input_shardings[:1]
    assert first.input_shardings == module.input_shardings
    assert second.input_shardings[1] == module.input_shardings[1]
    assert second.output_shardings == module.output_shardings


def test_a_stage_has_the_shapes_of_what_goes_through_its_markers():
    (_, first), _ = slice_stages(annotated(_two_stages, (X, W), NAMES))
    assert [shape.dims for shape in first.shape.parameters] == [(8, 8), (8, 8)]
    assert [shape.dims for shape in first.shape.results] == [(8, 8)]
    assert first.name == "tested-first"


def test_the_ends_of_a_stage_are_the_values_behind_its_markers_also_before_anything_is_annotated():
    module = annotated(_two_stages, (X, W), NAMES)
    plain = dataclasses.replace(module, mesh=None, input_shardings=None, output_shardings=None)
    graph = read_graph(plain.bytecode)
    ends = stage_ends(plain)
    assert [stage.name for stage in ends] == ["first", "second"]
    first, second = ends
    assert [graph.origin(value) for value in first.inputs] == list(graph.parameters)
    # What the second stage takes is what the first one leaves, and a parameter.
    assert [graph.origin(value) for value in second.inputs] == [graph.origin(*first.outputs), graph.parameters[1]]
    assert second.outputs == graph.results


def test_a_stage_with_a_loop_that_uses_values_from_outside_it_is_cut_whole():
    def function(x, w):
        x1, w1 = jax.lax.optimization_barrier((x, w))
        doubled = w1 * 2
        looped = jax.lax.cond(x1[0, 0] > 0, lambda: doubled + x1, lambda: doubled - x1)
        return jax.lax.optimization_barrier((looped, w1))

    ((_, stage),) = slice_stages(annotated(function, (X, W), ["only$start", "only$end"]))
    assert_parts_equal(run(stage, partition(stage), (X, W)), values_of(function, (X, W)))


def test_a_program_without_markers_has_no_stages():
    assert slice_stages(annotate(lower(lambda x: x * 2, (X,)), MESH_2X2)) == []


def test_a_stage_that_takes_nothing_has_an_end_marker_only():
    def function(x, w):
        x1, w1 = jax.lax.optimization_barrier((x, w))
        (y,) = jax.lax.optimization_barrier((x1 @ w1,))
        (constant,) = jax.lax.optimization_barrier((jax.numpy.arange(64, dtype=np.float32).reshape(8, 8) * 2,))
        return y, constant

    (_, first), (name, second) = slice_stages(annotated(function, (X, W), ["first$start", "first$end", "second$end"]))
    expected = values_of(function, (X, W))
    assert (name, second.shape.parameters) == ("second", ())
    assert_parts_equal(run(first, partition(first), (X, W)), expected[:1])
    assert_parts_equal(run(second, partition(second), ()), expected[1:])


def test_a_start_marker_without_an_end_is_an_error():
    with pytest.raises(ValueError, match="'second' has a start and no end"):
        slice_stages(annotated(_two_stages, (X, W), ["first$start", "first$end", "second$start", "other$hook"]))


def test_a_marker_that_starts_twice_is_an_error():
    with pytest.raises(ValueError, match="'first' starts or ends twice"):
        slice_stages(annotated(_two_stages, (X, W), ["first$start", "first$end", "first$start", "second$end"]))


def test_a_value_that_does_not_come_through_the_start_marker_is_an_error():
    def bypassing(x, w):
        (x1,) = jax.lax.optimization_barrier((x,))
        return jax.lax.optimization_barrier((x1 @ w,))

    with pytest.raises(ValueError, match="'only' uses a value that does not come through its start marker"):
        slice_stages(annotated(bypassing, (X, W), ["only$start", "only$end"]))


def test_a_module_without_annotations_is_refused():
    with pytest.raises(ValueError, match="needs an annotated module"):
        slice_stages(lower(lambda x: x * 2, (X,)))
