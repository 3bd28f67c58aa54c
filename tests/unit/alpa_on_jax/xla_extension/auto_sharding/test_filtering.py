"""Where the batch dim is forced onto a mesh axis, only strategies that split it there remain."""

import numpy as np
import pytest

from alpa_on_jax import errors
from alpa_on_jax.xla_extension.auto_sharding.specs import FIRST, NONE
from unit.alpa_on_jax.xla_extension.auto_sharding.programs import ilp_of, only, options, strategies_of

X, W = np.ones((8, 4), np.float32), np.ones((4, 6), np.float32)


def test_parameters_and_dots_with_a_batch_dim_are_split_along_it():
    ilp = ilp_of(lambda x, w: x @ w, X, W, chosen=options((2, 2), force_batch_dim_to_mesh_axis=0))
    for value in (ilp.graph.parameters[0], only(ilp.graph, "dot_general")):
        assert {strategy.spec[0] for strategy in strategies_of(ilp, value)} == {FIRST}


def test_a_parameter_without_a_batch_dim_keeps_its_strategies():
    forced, free = (
        ilp_of(lambda x, w: x @ w, X, W, chosen=options((2, 2), force_batch_dim_to_mesh_axis=axis))
        for axis in (0, None)
    )
    assert strategies_of(forced, forced.graph.parameters[1]) == strategies_of(free, free.graph.parameters[1])


def test_a_batch_dim_forced_onto_an_axis_of_one_device_is_not_split():
    ilp = ilp_of(lambda x, w: x @ w, X, W, chosen=options((4, 1), force_batch_dim_to_mesh_axis=1))
    assert {strategy.spec[0] for strategy in strategies_of(ilp, ilp.graph.parameters[0])} == {NONE}


def test_a_batch_that_the_axis_does_not_divide_is_an_error():
    with pytest.raises(errors.BatchDimError):
        ilp_of(lambda x, w: x @ w, X[:6], W, chosen=options((4, 1), force_batch_dim_to_mesh_axis=0))


def test_a_batch_of_one_is_not_split():
    ilp = ilp_of(lambda x, w: x @ w, X[:1], W, chosen=options((4, 1), force_batch_dim_to_mesh_axis=0))
    assert any(strategy.spec[0] == NONE for strategy in strategies_of(ilp, only(ilp.graph, "dot_general")))


def test_what_has_not_the_size_of_a_batch_may_have_a_dim_that_the_axis_does_not_divide():
    sizes = frozenset({8})
    ilp = ilp_of(
        lambda w: w @ w.T, W[:3, :3], chosen=options((4, 1), force_batch_dim_to_mesh_axis=0, batch_sizes=sizes)
    )
    assert {strategy.spec[0] for strategy in strategies_of(ilp, only(ilp.graph, "dot_general"))} == {NONE}


def test_a_batch_of_a_known_size_that_the_axis_does_not_divide_is_an_error():
    sizes = frozenset({6})
    with pytest.raises(errors.BatchDimError):
        ilp_of(
            lambda x, w: x @ w,
            X[:6],
            W,
            chosen=options((4, 1), force_batch_dim_to_mesh_axis=0, batch_sizes=sizes),
        )
