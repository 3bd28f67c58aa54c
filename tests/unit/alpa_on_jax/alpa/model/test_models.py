"""Alpa's models with current flax: initialise, run forward and backward in a plain jit."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from alpa.model import bert_model, conformer, gpt_model, model_util, moe, unet_2d, wide_resnet
from jax.sharding import Mesh, NamedSharding, PartitionSpec

pytestmark = pytest.mark.slow

IDS = (jnp.arange(16).reshape(2, 8) % 11,) + (jnp.ones((2, 8), jnp.int32),) * 3
SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "max_position_embeddings": 16,
}


@dataclass(frozen=True)
class Case:
    """A model, its arguments, and where the array is in what it returns."""

    make: Callable[[], Any]
    args: tuple
    output: Callable[[Any], jax.Array] = lambda out: out.logits
    options: dict = field(default_factory=dict)


def bert(cls: type, **options: Any) -> Callable[[], Any]:
    return lambda: cls(bert_model.BertConfig(**SIZES | options))


def experts(**options: Any) -> Callable[[], Any]:
    return lambda: moe.FlaxMoEForLMModule(moe.MoEConfig(**SIZES, expert_group_size=8, expert_number=2, **options))


def image(*shape: int) -> jax.Array:
    return jax.random.normal(jax.random.PRNGKey(1), shape)


def unet(down: tuple[str, ...], up: tuple[str, ...]) -> Callable[[], Any]:
    return lambda: unet_2d.get_unet_2d(16, down, up, (32, 32), num_attention_heads=4, layers_per_block=1)


def speech() -> Any:
    sizes = {"vocab_size": 16, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    config = conformer.ConformerConfig(**sizes, num_hidden_layers=1, conv_subsample_channel=4, conv_kernel_size=4)
    return conformer.ConformerForASRModule(config)


UNOPTIMISED = {"xla_backend_optimization_level": 0}
DROPOUT = {"deterministic": False}
CASES = {
    "gpt": Case(bert(gpt_model.FlaxGPTForLMModule), IDS),
    "gpt, dropout": Case(bert(gpt_model.FlaxGPTForLMModule), IDS, options=DROPOUT),
    "gpt, remat": Case(bert(gpt_model.FlaxGPTForLMModule, gradient_checkpointing=True), IDS),
    "gpt, untied, with layer boundaries": Case(
        bert(
            gpt_model.FlaxGPTForLMModule,
            tie_word_embeddings=False,
            type_vocab_size=0,
            add_manual_pipeline_markers=True,
            pipeline_mp_size=2,
        ),
        IDS,
    ),
    "gpt, half precision": Case(
        lambda: gpt_model.FlaxGPTForLMModule(bert_model.BertConfig(**SIZES), dtype=jnp.float16), IDS
    ),
    "bert, masked words": Case(bert(bert_model.FlaxBertForMaskedLMModule), IDS),
    "bert, pre-training": Case(bert(bert_model.FlaxBertForPreTrainingModule), IDS, lambda o: o.prediction_logits),
    "bert, classification": Case(bert(bert_model.FlaxBertForSequenceClassificationModule, num_labels=3), IDS),
    "moe": Case(experts(), IDS),
    "moe, remat": Case(experts(gradient_checkpointing=True), IDS),
    "moe, remat and dropout": Case(experts(gradient_checkpointing=True), IDS, options=DROPOUT),
    "wide resnet": Case(
        lambda: wide_resnet.get_wide_resnet(18, 1, 4, 10, jnp.float32), (image(2, 32, 32, 3),), lambda o: o
    ),
    "wide resnet, bottleneck": Case(
        lambda: wide_resnet.get_wide_resnet(50, 2, 4, 10, jnp.float32), (image(2, 32, 32, 3),), lambda o: o
    ),
    "u-net": Case(
        unet(("DownBlock2D",) * 2, ("UpBlock2D",) * 2), (image(2, 3, 16, 16), 1, image(2, 64, 32)), lambda o: o.sample
    ),
    "u-net, cross attention": Case(
        unet(("CrossAttnDownBlock2D", "DownBlock2D"), ("UpBlock2D", "CrossAttnUpBlock2D")),
        (image(2, 3, 16, 16), 1, image(2, 64, 32)),
        lambda o: o.sample,
    ),
    "conformer": Case(speech, (image(2, 16, 8, 1), jnp.ones((2, 4), jnp.int32)), lambda o: o),
}


def value_and_gradients(case: Case) -> tuple[jax.Array, Any]:
    model = case.make()
    variables = jax.jit(lambda: model.init(jax.random.PRNGKey(0), *case.args), compiler_options=UNOPTIMISED)()
    rest = {name: values for name, values in variables.items() if name != "params"}

    def loss(params: Any) -> jax.Array:
        out = model.apply(
            {"params": params, **rest},
            *case.args,
            rngs={"dropout": jax.random.PRNGKey(0)},
            mutable=list(rest) or False,
            **case.options,
        )
        return jnp.mean(case.output(out[0] if rest else out).astype(jnp.float32) ** 2)

    # What is tested is that it runs: unoptimised code is compiled several times faster.
    return jax.jit(jax.value_and_grad(loss), compiler_options=UNOPTIMISED)(variables["params"])


# These two take tens of seconds to compile; what they have in common with others is tested there.
SLOW = {"wide resnet, bottleneck", "u-net, cross attention"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in CASES])
def test_a_model_initialises_and_has_a_finite_gradient(name: str) -> None:
    loss, grads = value_and_gradients(CASES[name])
    assert loss > 0
    assert all(jnp.isfinite(g).all() for g in jax.tree.leaves(grads))
    assert sum(float(jnp.abs(g).sum()) for g in jax.tree.leaves(grads)) > 0


@pytest.mark.parametrize("name", ["gpt", "moe"])
def test_remat_changes_no_gradient(name: str) -> None:
    plain, remat = (value_and_gradients(CASES[case]) for case in (name, f"{name}, remat"))
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(remat), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_an_output_keeps_its_first_array_when_it_lies_on_several_devices() -> None:
    mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
    logits = jax.device_put(np.ones((4, 3), np.float32), NamedSharding(mesh, PartitionSpec("x")))
    assert model_util.FlaxMaskedLMOutput(logits=logits)[0] is logits
