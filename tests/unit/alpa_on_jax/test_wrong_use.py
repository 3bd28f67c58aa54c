"""What alpa on stock JAX says to who asks for something that cannot be; each case is the call of a user."""

import itertools
import logging
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa.model import moe
from alpa.pipeline_parallel.primitive_def import mark_gradient
from alpa.serialization import load_sharded_array
from alpa.util import trace_jaxpr_with_micro_batch
from jax._src.lib import xla_client
from jax._src.sharding_impls import GSPMDSharding

from alpa_cfp.spmd.partition.local_ops import HANDLERS
from alpa_on_jax import errors
from alpa_on_jax.jax import linear_util as lu
from alpa_on_jax.jax.interpreters.pxla import Chunked, NoSharding, ShardedAxis, ShardingSpec
from alpa_on_jax.replacing import replace, replace_in_class
from alpa_on_jax.xla_extension.auto_sharding.cost_graph import build_cost_graph
from alpa_on_jax.xla_extension.auto_sharding.filtering import keep_batch_split
from alpa_on_jax.xla_extension.auto_sharding.graph import Instruction
from alpa_on_jax.xla_extension.auto_sharding.solver import make_problem, solve
from alpa_on_jax.xla_extension.auto_sharding.specs import FIRST, NONE, SECOND
from alpa_on_jax.xla_extension.auto_sharding.strategies import Node, Strategy
from unit.alpa_on_jax.xla_extension.auto_sharding.programs import ilp_of, options

X, W = np.ones((6, 4), np.float32), np.ones((4, 6), np.float32)


def test_a_name_that_ray_no_longer_has_is_an_error_with_the_way_around() -> None:
    with pytest.raises(
        errors.RayNameError, match=r"ray\.no_such_name, which the installed Ray does not have.*\"local\""
    ):
        _ = alpa.device_mesh.ray.no_such_name


def test_a_static_argument_that_cannot_be_hashed_is_an_error_that_names_it() -> None:
    step = alpa.parallelize(lambda x, sizes: x, method=alpa.ShardParallel(), static_argnums=(1,))
    with pytest.raises(errors.ArgnumsError, match=r"makes argument 1, of type list, static, but it cannot be hashed"):
        step(jnp.ones(2), [1])


def test_experts_in_an_odd_number_of_layers_are_refused() -> None:
    config = moe.MoEConfig(
        num_hidden_layers=3, hidden_size=8, intermediate_size=8, num_attention_heads=2, vocab_size=8,
        max_position_embeddings=8,
    )  # fmt: skip
    ids = jnp.ones((1, 8), jnp.int32)
    with pytest.raises(ValueError, match="num_hidden_layers=3 must be even: every second layer has experts"):
        moe.FlaxMoEForLMModule(config).init(jax.random.key(0), ids, ids, ids, ids)


def test_a_dtype_that_numpy_lacks_is_an_error_that_names_it() -> None:
    double = alpa.parallelize(lambda x: x + x, method=alpa.ShardParallel())
    with pytest.raises(ValueError, match=r"element type .*4.* has no numpy dtype"):
        double(jnp.ones((8, 8), jnp.float4_e2m1fn))


def test_micro_batches_are_cut_from_the_first_dim_only() -> None:
    fun = lu.wrap_init(mark_gradient)
    with pytest.raises(errors.MicroBatchError, match="splits arrays along dim 0 only, not along dim 1"):
        trace_jaxpr_with_micro_batch(fun, (True,), 2, [jax.ShapeDtypeStruct((4, 4), jnp.float32)], 1)


def test_a_sharding_spec_for_an_array_of_another_rank_is_an_error_that_names_both() -> None:
    spec = ShardingSpec((Chunked((2,)), NoSharding()), (ShardedAxis(0),))
    with pytest.raises(errors.ShardingOptionError, match=r"is for arrays of rank 2, but the array's shape is \(4,\)"):
        spec.indices((4,))


def test_an_array_whose_sharding_names_no_axes_has_no_sharding_spec() -> None:
    rows = GSPMDSharding(jax.devices()[:8], xla_client.HloSharding.iota_tile((8, 1)))
    with pytest.raises(AttributeError, match="has no sharding_spec: it names no mesh axes"):
        _ = jax.device_put(jnp.ones((8, 8)), rows).sharding_spec


def test_a_checkpoint_without_the_parts_of_an_array_is_an_error_that_names_the_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=f"{tmp_path.name} holds no array: there is no metadata file in it"):
        load_sharded_array(str(tmp_path), [])


def test_a_name_that_a_version_of_alpa_lacks_is_an_error_that_says_where() -> None:
    with pytest.raises(AttributeError, match="other has no 'gone' to replace"):
        replace(ModuleType("other"), gone=1)
    with pytest.raises(AttributeError, match=r"types\.SimpleNamespace has no 'gone' to replace"):
        replace_in_class(SimpleNamespace, gone=1)


def test_a_mistake_of_the_package_is_called_one() -> None:
    # Nobody can cause it, if there is none.
    with pytest.raises(
        RuntimeError, match=r"two and two are five\. This is a mistake in alpa_cfp, not in your program"
    ):
        raise errors.InternalError("two and two are five")


def test_a_batch_that_the_devices_do_not_divide_is_warned_of_where_it_takes_choice_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    chosen = options((2, 2), force_batch_dim_to_mesh_axis=0, allow_mixed_mesh_shape=True)
    with caplog.at_level(logging.WARNING):
        ilp_of(lambda x, w: x @ w, X, W, chosen=chosen)
    assert "a batch of 6 is not divided by 4 devices: no mixed mesh shapes" in caplog.text


def test_a_batch_dim_that_no_strategy_of_an_op_splits_is_an_error_that_names_the_op() -> None:
    op: Any = SimpleNamespace(opcode="sort", shape=(8, 4))
    builder: Any = SimpleNamespace(
        options=options((2, 2), force_batch_dim_to_mesh_axis=0), batch=_Batch(0), mesh=SimpleNamespace(shape=(2, 2))
    )
    with pytest.raises(errors.BatchDimError, match=r"no strategy of the op sort .*\(8, 4\) splits its batch dim 0"):
        keep_batch_split(builder, op, ())


def test_donated_arguments_that_cannot_all_lie_as_their_results_are_an_error_that_says_what_to_do() -> None:
    specs = ((FIRST,), (SECOND,), (NONE,))
    # Each two have a place in common, and the three have none.
    nodes = [_node(i, *(spec for k, spec in enumerate(specs) if k != i)) for i in range(3)]
    costs = build_cost_graph(nodes, [])
    problem = make_problem(nodes, costs, [(a, b) for a, b in itertools.combinations(nodes, 2)], [[], [], []], None)
    with pytest.raises(errors.AutoShardingInfeasibleError, match="every donated argument is sharded as the result"):
        solve(problem, {node.instruction: node for node in nodes}, costs)


def _node(index: int, *specs: tuple[int, ...]) -> Node:
    made = Instruction(index, "made", (4,), 16.0, None)
    node = Node(index, made, tuple(Strategy("made", spec) for spec in specs))
    node.specs = specs
    node.compute_cost = node.communication_cost = np.zeros(len(specs))
    node.memory_bytes = np.ones(len(specs))
    return node


class _Batch:
    """The batch dims of a program in which every value has the same one."""

    def __init__(self, dim: int) -> None:
        self._dim = dim

    def get(self, instruction: Any) -> int:
        return self._dim


def test_what_shardys_passes_do_not_cover_is_warned_of_with_micro_batches(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(HANDLERS, "chlo.top_k")

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        return w - alpa.grad(lambda w: jnp.mean(jax.lax.top_k(x @ w, 2)[0]))(w)

    method = alpa.ShardParallel(devices=jax.devices()[:2], num_micro_batches=2)
    with caplog.at_level(logging.WARNING):
        alpa.parallelize(step, method=method, donate_argnums=())(jnp.eye(4), jnp.ones((8, 4)))
    assert "gradients are reduced in every micro-batch, because of chlo.top_k" in caplog.text
