"""Manual shardings as users write them, read by alpa's own code."""

import alpa
import jax
import jax.numpy as jnp
import optax
import pytest
from alpa.model.model_util import TrainState
from alpa.shard_parallel.manual_sharding import get_manual_sharding_spec
from jax._src.lib import xla_client as xc
from jax.sharding import PartitionSpec as P

from alpa_on_jax import errors

KIND = xc.OpSharding.Type


def state() -> TrainState:
    params = {"dense": {"kernel": jnp.ones((8, 16)), "bias": jnp.ones(16)}}
    return TrainState.create(apply_fn=None, params=params, tx=optax.sgd(0.1, momentum=0.9), dynamic_scale=None)


def shardings(resources, *args, names=("data", "model"), mesh_shape=(2, 4), out=None):
    option = alpa.ManualShardingOption(names, in_axis_resources=resources, out_axis_resources=out)
    leaves, tree = jax.tree.flatten(args)
    return get_manual_sharding_spec(option, mesh_shape, tree, tree, leaves, leaves)


def test_a_train_state_with_nones_in_it_is_sharded_leaf_by_leaf() -> None:
    value = state()
    spec = jax.tree.map(lambda x: None, value)
    spec = spec.replace(params={"dense": {"kernel": P("data", "model"), "bias": P("model")}}, step=None)
    spec = spec.replace(opt_state=None, master_copy=None, dynamic_scale=None)
    batch_spec = {"x": P("data"), "y": P(("data", "model"), None)}
    found, _ = shardings((spec, batch_spec), value, {"x": jnp.ones((8, 4)), "y": jnp.ones((8, 4))})
    shapes = [leaf.shape for leaf in jax.tree.leaves(value)]
    by_shape = dict(zip(shapes[:3], found[:3], strict=True))
    assert by_shape[()].type == KIND.REPLICATED
    assert list(by_shape[(8, 16)].tile_assignment_dimensions) == [2, 4]
    assert list(by_shape[(16,)].tile_assignment_dimensions) == [4, 2]
    assert by_shape[(16,)].replicate_on_last_tile_dim
    assert [s.type for s in found[3:-2]] == [KIND.REPLICATED] * (len(shapes) - 3)
    x, y = found[-2:]
    assert list(x.tile_assignment_dimensions) == [2, 1, 4]
    assert list(y.tile_assignment_dimensions) == [8, 1]


def test_none_for_all_arguments_means_replicated() -> None:
    found, outs = shardings(None, jnp.ones(8), jnp.ones((8, 8)))
    assert [s.type for s in found] == [s.type for s in outs] == [KIND.REPLICATED] * 2


def test_shardings_that_the_user_leaves_out_are_none() -> None:
    option = alpa.ManualShardingOption(("data",))
    leaves, tree = jax.tree.flatten((jnp.ones(8),))
    assert get_manual_sharding_spec(option, (8,), tree, tree, leaves, leaves) == (None, None)


@pytest.mark.parametrize(
    ("spec", "match"),
    [
        (P("tensor"), r"names the mesh axis 'tensor', but the mesh axes are \('data', 'model'\)"),
        (P("data", "data"), "names the mesh axis 'data' twice"),
        (P(None, None, "model"), "on dim 2, but the array has 2 dims"),
        (P(P.UNCONSTRAINED), "unconstrained"),
        ("data", "is no PartitionSpec"),
    ],
)
def test_a_sharding_that_does_not_fit_is_an_error_that_says_why(spec: object, match: str) -> None:
    with pytest.raises(errors.ShardingOptionError, match=match):
        shardings((spec,), jnp.ones((8, 8)))
