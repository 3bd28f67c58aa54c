"""Whatever `alpa.ShardParallel` is used for, `CFPShardParallel` plans too, and the plan equals the serial run.

What a plan is does not matter here, so costs are estimated. Where strategies meet something of their own (a parameter
that is used twice, recomputation, stacked parameters, another precision, states of another shape), combinations of them
are drawn at random as well.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import alpa
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from alpa_cfp_bench.workloads.model import Model
from alpa_cfp_bench.workloads.models import build
from alpa_cfp_bench.workloads.sizes import TINY
from integration.planned import ESTIMATE, DrawnPlan, method, planned, planned_function
from integration.serial import assert_equal_up_to_rounding, run_serially

pytestmark = pytest.mark.slow

SMALL = dataclasses.replace(TINY, layers=1, image=8)
# bfloat16 has 8 bits, and a gradient here is a sum of 256 products, which a CPU may add up in bfloat16: the serial run
# itself is off by up to 0.046 of the largest entry from what float32 gives, and two such runs by up to twice that from
# each other. A gradient that lacks the part of one of 8 devices is off by 0.125.
BF16_TOLERANCE = 0.1


def random(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def equal_up_to_bf16_rounding(actual: Any, expected: Any) -> None:
    def check(path: Any, got: np.ndarray, wanted: np.ndarray) -> None:
        name = jax.tree_util.keystr(path)
        assert got.dtype == wanted.dtype, name
        if "accuracy" in name:
            return  # where two words are equally likely, rounding decides
        size = float(np.max(np.abs(wanted), initial=0.0))
        difference = float(np.max(np.abs(got - wanted), initial=0.0))
        assert difference <= BF16_TOLERANCE * size, f"{name}: differs by {difference:.3g} (largest entry {size:.3g})"

    jax.tree_util.tree_map_with_path(check, actual, expected)


def check_of(model: str) -> Callable[[Any, Any], None]:
    return equal_up_to_bf16_rounding if "bf16" in model else assert_equal_up_to_rounding


@pytest.mark.parametrize(
    ("model", "mesh", "num_micro_batches"),
    [
        ("llama", "2x2", None),
        ("llama, remat", "1x8", None),
        ("llama, scan", "1x8", 2),
        ("llama, tied", "1x8", None),
        ("llama, bf16", "1x8", None),
        ("wide_resnet", "1x8", 2),
        ("wide_resnet", "2x4", None),
        ("unet", "2x2", 2),
    ],
)
def test_a_planned_model_equals_the_serial_run(model: str, mesh: str, num_micro_batches: int | None) -> None:
    planned(model, mesh, num_micro_batches, check=check_of(model), size=SMALL)


@pytest.mark.parametrize(
    ("model", "mesh", "seed"),
    [
        ("llama", "2x4", 0),
        ("llama", "2x4", 1),
        ("llama, remat", "2x4", 0),
        ("llama, remat", "2x4", 1),
        ("llama, scan", "1x8", 0),
        ("llama, scan", "2x4", 1),
        ("llama, tied", "2x4", 0),
        ("llama, tied", "2x4", 1),
        ("llama, bf16", "2x2", 0),
        ("llama, bf16", "2x2", 1),
    ],
)
def test_a_model_with_strategies_drawn_at_random_equals_the_serial_run(model: str, mesh: str, seed: int) -> None:
    planned(model, mesh, None, DrawnPlan(seed=seed), check_of(model), SMALL)


def test_micro_batches_of_an_array_that_the_loss_does_not_use_are_not_taken_for_those_of_another() -> None:
    # Alpa numbers the batch's arrays by name, and "unused" comes before "x".
    model = build("mlp")
    planned(dataclasses.replace(model, batch={**model.batch, "unused": random(16, 32, seed=1)}), "1x8", 2)


def with_optimizer(optimizer: optax.GradientTransformation) -> Model:
    model = build("mlp")
    state = model.state.replace(tx=optimizer, opt_state=optimizer.init(model.state.params))
    return dataclasses.replace(model, state=state)


# The first step of Adam and its like divides a gradient by its own size, which makes a number out of the rounding of
# one that is nearly zero. With an epsilon of the size of the gradients it does not, and the program is the same.
OPTIMIZERS = {
    "sgd": optax.sgd(0.5),
    "momentum": optax.sgd(0.5, momentum=0.9, nesterov=True),
    "adam": optax.adam(0.1, eps=0.01),
    "adamw with a schedule and a global norm": optax.chain(
        optax.clip_by_global_norm(0.1),
        optax.adamw(optax.warmup_cosine_decay_schedule(0.1, 0.2, 10, 100), eps=0.01, weight_decay=0.1),
    ),
    "adafactor": optax.adafactor(0.1, min_dim_size_to_factor=8, eps=1e-4),
    "lamb": optax.lamb(0.1, eps=0.01),
}
OPTIMIZER_CASES = [
    ("sgd", "1x8", None),
    ("momentum", "1x8", None),
    ("adam", "2x4", None),
    ("adamw with a schedule and a global norm", "1x8", None),
    ("adamw with a schedule and a global norm", "2x2", 4),
    ("adafactor", "2x4", None),
    ("lamb", "1x8", None),
]


@pytest.mark.parametrize(("optimizer", "mesh", "num_micro_batches"), OPTIMIZER_CASES)
def test_a_planned_step_of_every_optimizer_equals_the_serial_run(
    optimizer: str, mesh: str, num_micro_batches: int | None
) -> None:
    planned(with_optimizer(OPTIMIZERS[optimizer]), mesh, num_micro_batches)


@pytest.mark.parametrize("seed", range(3))
def test_factored_states_equal_the_serial_ones_with_strategies_drawn_at_random(seed: int) -> None:
    planned(with_optimizer(OPTIMIZERS["adafactor"]), "2x4", None, DrawnPlan(seed=seed))


@pytest.mark.parametrize(
    ("optimizer", "mesh", "num_micro_batches"),
    [("adam", "2x4", None), ("adamw with a schedule and a global norm", "1x8", 2), ("adafactor", "2x4", None)],
)
def test_state_that_devices_share_at_random_equals_the_serial_state(
    optimizer: str, mesh: str, num_micro_batches: int | None
) -> None:
    planned(with_optimizer(OPTIMIZERS[optimizer]), mesh, num_micro_batches, DrawnPlan(seed=0, kept=True))


def test_a_planned_step_gives_back_its_state_in_the_buffers_that_it_takes() -> None:
    model = build("mlp")
    step = planned(model, "2x4")
    state, batch = step.preshard_dynamic_args(jax.tree.map(jnp.copy, model.state), model.batch)
    new, *_ = step(state, batch)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))
    shardings = [jax.tree.map(lambda leaf: leaf.sharding, each.params) for each in (state, new)]
    assert shardings[0] == shardings[1]
    again, *_ = step(new, batch)
    assert int(again.step) == 2


# The functions below are small programs that no model contains. Each gets a mesh that its sizes do not all divide.


def inference(params: dict[str, jax.Array], x: jax.Array) -> tuple[jax.Array, jax.Array]:
    logits = jax.nn.relu(x @ params["up"]) @ params["down"]
    return jnp.argmax(logits, axis=-1), jax.nn.softmax(logits)


def no_contraction(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    return jnp.tanh(x) + y, jnp.sum(x * y, axis=0)


def scalars(params: dict[str, jax.Array], x: jax.Array) -> Any:
    def loss(params: dict[str, jax.Array]) -> jax.Array:
        return jnp.mean((jnp.tanh(x @ params["w"]) * params["scale"] + params["shift"]) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


def unused(params: dict[str, jax.Array], x: jax.Array) -> Any:
    grads = jax.grad(lambda params: jnp.mean((x @ params["w"]) ** 2))(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), x.shape[0]


def twice(params: dict[str, jax.Array], x: jax.Array) -> Any:
    def loss(params: dict[str, jax.Array]) -> jax.Array:
        return jnp.mean((jax.nn.relu(x @ params["w"]) @ params["w"].T @ params["w"] - 1) ** 2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


def without_rules(params: dict[str, jax.Array], x: jax.Array) -> Any:
    def loss(params: dict[str, jax.Array]) -> jax.Array:
        y = jax.lax.erf(x @ params["up"])
        best, _ = jax.lax.top_k(y, 8)
        y = jnp.cumsum(jnp.sort(y, axis=-1), axis=0) @ params["down"]
        return jnp.mean(y**2) + jnp.mean(best)

    return jax.value_and_grad(loss)(params)


def attention_with_a_mask(params: dict[str, jax.Array], x: jax.Array) -> Any:
    def loss(params: dict[str, jax.Array]) -> jax.Array:
        q, k, v = (x @ params[name] for name in ("q", "k", "v"))
        scores = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((6, 6), bool)), q @ jnp.swapaxes(k, 1, 2), -1e9))
        return jnp.mean((scores @ v) ** 2)

    return jax.value_and_grad(loss)(params)


def experts(params: dict[str, jax.Array], x: jax.Array) -> Any:
    """Each token goes to its best expert by products with one-hot masks, as in GShard."""

    def loss(params: dict[str, jax.Array]) -> jax.Array:
        gates = jax.nn.softmax(jnp.einsum("gsm,me->gse", x, params["router"]))
        mask = jax.nn.one_hot(jnp.argmax(gates, axis=-1), gates.shape[-1])
        place = (jnp.cumsum(mask, axis=1) * mask - mask).astype(jnp.int32)
        dispatch = jax.nn.one_hot(place, 4) * mask[..., None]
        inside = jax.nn.relu(jnp.einsum("egcm,emh->egch", jnp.einsum("gsec,gsm->egcm", dispatch, x), params["wi"]))
        combine = dispatch * jnp.sum(gates * mask, axis=-1)[..., None, None]
        out = jnp.einsum("gsec,egcm->gsm", combine, jnp.einsum("egch,ehm->egcm", inside, params["wo"]))
        return jnp.mean((out - x) ** 2)

    return jax.value_and_grad(loss)(params)


def lookups(params: dict[str, jax.Array], tokens: jax.Array) -> Any:
    def loss(params: dict[str, jax.Array]) -> jax.Array:
        x = params["embedding"][tokens] + params["positions"]
        logits = jax.nn.log_softmax(jnp.tanh(x) @ params["embedding"].T)
        return -jnp.mean(jnp.take_along_axis(logits, tokens[..., None], axis=-1))

    return jax.value_and_grad(loss)(params)


def convolutions(params: dict[str, jax.Array], x: jax.Array) -> Any:
    def conv(x: jax.Array, kernel: jax.Array, stride: int, groups: int = 1) -> jax.Array:
        dims = ("NHWC", "HWIO", "NHWC")
        return jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), "SAME", dimension_numbers=dims, feature_group_count=groups
        )

    def loss(params: dict[str, jax.Array]) -> jax.Array:
        y = jax.nn.relu(conv(x, params["first"], 2))
        y = conv(y, params["depthwise"], 1, groups=16)
        return jnp.mean(conv(y, params["last"], 1) ** 2)

    return jax.value_and_grad(loss)(params)


MLP = {"up": random(16, 32), "down": random(32, 8)}
FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "inference with an integer output": (inference, (MLP, random(8, 16))),
    "a function without any contraction": (no_contraction, (random(8, 16), random(8, 16, seed=1))),
    "scalar parameters": (scalars, ({"w": random(16, 32), "scale": random(), "shift": random(1)}, random(8, 16))),
    "a parameter without use": (unused, ({"w": random(16, 32), "other": random(8, 8)}, random(8, 16))),
    "two contractions of one parameter": (twice, ({"w": random(16, 16) / 4}, random(8, 16))),
    "a batch that the mesh does not divide": (inference, (MLP, random(6, 16))),
    "sizes that are prime": (inference, ({"up": random(13, 7), "down": random(7, 3)}, random(5, 13))),
    "operations without a rule": (without_rules, (MLP, random(8, 16))),
    "attention over six positions": (
        attention_with_a_mask,
        ({name: random(8, 8, seed=i) / 3 for i, name in enumerate("qkv")}, random(4, 6, 8)),
    ),
    "experts": (
        experts,
        ({"router": random(16, 4), "wi": random(4, 16, 32) / 4, "wo": random(4, 32, 16) / 4}, random(4, 8, 16)),
    ),
    "a tied embedding that is gathered": (
        lookups,
        (
            {"embedding": random(24, 16), "positions": random(6, 16)},
            jnp.asarray(np.random.default_rng(0).integers(0, 24, (8, 6)), jnp.int32),
        ),
    ),
    "convolutions with strides and with groups": (
        convolutions,
        (
            {"first": random(3, 3, 8, 16), "depthwise": random(3, 3, 1, 16), "last": random(1, 1, 16, 8)},
            random(8, 8, 8, 8),
        ),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_planned_function_equals_the_serial_run(name: str) -> None:
    function, args = FUNCTIONS[name]
    planned_function(function, *args, mesh="2x4")


@pytest.mark.parametrize("mesh", ["2x4", "1x8"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_with_strategies_drawn_at_random_equals_the_serial_run(name: str, mesh: str) -> None:
    function, args = FUNCTIONS[name]
    planned_function(function, *args, mesh=mesh, option=DrawnPlan(seed=0))


def dropped(params: dict[str, jax.Array], x: jax.Array, kept: jax.Array) -> Any:
    def loss(params: dict[str, jax.Array]) -> jax.Array:
        return jnp.mean((jnp.where(kept, 2 * jax.nn.relu(x @ params["up"]), 0) @ params["down"]) ** 2)

    return jax.value_and_grad(loss)(params)


def dropout(params: dict[str, jax.Array], x: jax.Array, key: jax.Array) -> Any:
    kept = jax.random.bernoulli(key, 0.5, (x.shape[0], params["up"].shape[1]))
    return kept, dropped(params, x, kept)


@pytest.mark.parametrize("option", [ESTIMATE, DrawnPlan(seed=0), DrawnPlan(seed=1)])
def test_dropout_by_a_plan_is_dropout(option: Any) -> None:
    # Alpa draws its own numbers, so the serial run is given those that it drew.
    x, key = random(8, 16), jax.random.PRNGKey(1)
    parallel: Any = alpa.parallelize(dropout, method=method("2x4", option), donate_argnums=())
    kept, actual = jax.tree.map(np.asarray, parallel(MLP, x, key))
    assert 0.3 < np.mean(kept) < 0.7
    assert_equal_up_to_rounding(actual, run_serially(dropped, MLP, x, kept))
