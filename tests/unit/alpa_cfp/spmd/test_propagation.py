"""Sharding propagation: what was set stays, the rest follows, and every input and output is divided evenly."""

import numpy as np
import pytest

from alpa_cfp.spmd.propagation import donation_pairs
from alpa_on_jax.errors import IndivisibleShardingError
from unit.alpa_cfp.spmd.helpers import MESH_2X4, MESHES, annotate, lower, mesh_id, split

X, W = np.ones((8, 16), np.float32), np.ones((16, 8), np.float32)


def _dot(x, w):
    return x @ w


def test_shardings_that_were_set_are_kept():
    inputs, outputs = [split(MESH_2X4, "x", ""), split(MESH_2X4, "y", "")], [split(MESH_2X4, "", "y")]
    module = annotate(lower(_dot, (X, W)), MESH_2X4, inputs, outputs)
    assert list(module.input_shardings) == inputs
    assert list(module.output_shardings) == outputs
    assert module.fixed_outputs == {0}


def test_an_output_gets_the_sharding_that_follows_from_the_inputs():
    module = annotate(lower(_dot, (X, W)), MESH_2X4, [split(MESH_2X4, "x", ""), split(MESH_2X4, "", "y")])
    assert module.output_shardings == (split(MESH_2X4, "x", "y"),)


def test_without_propagation_to_outputs_an_output_is_whole_everywhere():
    inputs = [split(MESH_2X4, "x", ""), split(MESH_2X4, "", "y")]
    module = annotate(lower(_dot, (X, W)), MESH_2X4, inputs, to_outputs=False)
    assert module.output_shardings[0].is_replicated


def test_an_input_gets_the_sharding_that_follows_from_an_output():
    module = annotate(lower(_dot, (X, W)), MESH_2X4, None, [split(MESH_2X4, "x", "")])
    assert module.input_shardings[0].dims[0] == split(MESH_2X4, "x").dims[0]


@pytest.mark.parametrize("to_outputs", [True, False])
def test_an_output_that_reuses_a_donated_input_keeps_its_sharding(to_outputs):
    module = lower(lambda state, x: (state + x, x.sum()), (X, X), donated=(True, False))
    annotate(module, MESH_2X4, [split(MESH_2X4, "y", "x"), None], to_outputs=to_outputs)
    assert module.output_shardings[0] == split(MESH_2X4, "y", "x")


def test_a_sharding_that_does_not_divide_its_array_is_an_error():
    with pytest.raises(IndivisibleShardingError, match=r"\(6, 4\)"):
        annotate(lower(lambda x: x + 1, (np.ones((6, 4), np.float32),)), MESH_2X4, [split(MESH_2X4, "y", "")])


@pytest.mark.parametrize("mesh", MESHES, ids=mesh_id)
def test_what_propagates_to_a_dim_that_it_does_not_divide_is_dropped(mesh):
    axis = mesh.axis_names[1 if mesh.shape[1] > 1 else 0]
    reshaped = lower(lambda x: (x.reshape(4, 6, 4)[:, :3] * 2, x[:7]), (np.ones((24, 4), np.float32),))
    module = annotate(reshaped, mesh, [split(mesh, axis, "")])
    for sharding, shape in zip(module.output_shardings, module.shape.results, strict=True):
        assert sharding.divides(shape.dims)
    assert module.input_shardings == (split(mesh, axis, ""),)


def test_donated_inputs_are_paired_with_results_of_their_shape_in_order():
    a, b = np.ones((4, 4), np.float32), np.ones((8,), np.float32)
    module = lower(lambda p, q, r, s: (q * 2, r + 1, p + 1), (a, b, a, b), donated=(True, True, True, True))
    assert donation_pairs(module) == [(1, 0), (0, 1), (2, 2)]


def test_aliases_that_alpa_set_come_first():
    module = lower(lambda p, q: (p + 1, q + 1), (X, X), donated=(True, True))
    module.setup_alias((1,), 0, ())
    assert donation_pairs(module) == [(1, 0), (0, 1)]
