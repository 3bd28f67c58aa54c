"""Models of images: takes a size, gives back Alpa's own residual nets and U-Net, and a vision transformer."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from alpa.model.unet_2d import get_unet_2d
from alpa.model.wide_resnet import BottleneckResNetBlock, ResNet, ResNetBlock
from alpa.model.wide_resnet import TrainState as ResNetTrainState

from alpa_cfp_bench.workloads.model import Model, apply_gradients, first_step_number, initial_state, optimizer
from alpa_cfp_bench.workloads.sizes import Size
from alpa_cfp_bench.workloads.vit import Vit

_CLASSES = 8


def wide_resnet(size: Size) -> Model:
    """Alpa's Wide-ResNet: `size.layers` bottleneck blocks in two stages, twice as wide."""
    return _residual_net("wide_resnet", size, BottleneckResNetBlock, width_factor=2)


def conv(size: Size) -> Model:
    """Alpa's residual net of `size.layers` plain blocks in two stages."""
    return _residual_net("conv", size, ResNetBlock, width_factor=1)


def _residual_net(name: str, size: Size, block: Any, width_factor: int) -> Model:
    rng = np.random.default_rng(0)
    batch = _labelled_images(size, rng)
    module = ResNet(
        stage_sizes=[size.layers - size.layers // 2, size.layers // 2],
        block_cls=block,
        num_classes=_CLASSES,
        num_filters=size.channels,
        width_factor=width_factor,
    )
    variables = jax.jit(module.init)(jax.random.key(0), batch["image"])

    def trained(path: tuple[Any, ...], leaf: jax.Array) -> jax.Array:
        # The last batch norm of a block starts with scale 0, which cuts the block's convolutions off from the loss.
        is_scale = jax.tree_util.keystr(path, simple=True, separator="/").endswith("scale")
        return jnp.asarray(rng.uniform(0.5, 1.5, leaf.shape), jnp.float32) if is_scale else leaf

    state = ResNetTrainState.create(
        apply_fn=module.apply,
        params=jax.tree_util.tree_map_with_path(trained, variables["params"]),
        tx=optimizer(0.1),
        batch_stats=variables["batch_stats"],
        dynamic_scale=None,
    )

    def loss(params: Any, state: Any, batch: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, Any]]:
        variables = {"params": params, "batch_stats": state.batch_stats}
        logits, updated = state.apply_fn(variables, batch["image"], mutable=["batch_stats"])
        value, metrics = _label_loss(logits, batch["label"])
        return value, {"metrics": metrics, "batch_stats": updated["batch_stats"]}

    def update(state: Any, grads: Any, aux: dict[str, Any]) -> Any:
        return state.apply_gradients(grads=grads, batch_stats=aux["batch_stats"])

    return Model(name, state.replace(step=first_step_number()), batch, loss, update)


def vit(size: Size) -> Model:
    """A vision transformer (`vit.py`)."""
    batch = _labelled_images(size, np.random.default_rng(0))
    state = initial_state(Vit(_CLASSES, size.hidden, size.layers, size.heads), [batch["image"]], 0.1)

    def loss(params: Any, state: Any, batch: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, Any]]:
        value, metrics = _label_loss(state.apply_fn(params, batch["image"]), batch["label"])
        return value, {"metrics": metrics}

    return Model("vit", state, batch, loss, apply_gradients)


def _labelled_images(size: Size, rng: np.random.Generator) -> dict[str, jax.Array]:
    return {
        "image": jnp.asarray(rng.normal(size=(size.batch, size.image, size.image, size.channels)), jnp.float32),
        "label": jnp.asarray(rng.integers(0, _CLASSES, size=(size.batch,)), jnp.int32),
    }


def _label_loss(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The mean over the samples, and the metrics."""
    hot = jax.nn.one_hot(labels, _CLASSES)
    value = -jnp.mean(jnp.sum(hot * jax.nn.log_softmax(logits), axis=-1))
    return value, {"accuracy": jnp.mean(jnp.argmax(logits, axis=-1) == labels)}


def unet(size: Size) -> Model:
    """Alpa's U-Net, conditioned on a context."""
    # Two resolutions, with attention at the lower one: blocks of each kind, and its sides stay divisible by 8.
    module = get_unet_2d(
        sample_size=size.image,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(size.hidden, size.hidden),
        in_channels=size.channels,
        out_channels=size.channels,
        layers_per_block=1,
        num_attention_heads=size.heads,
        num_groups=8,
        add_manual_pipeline_markers=False,
    )
    rng = np.random.default_rng(0)
    shape = (size.batch, size.channels, size.image, size.image)
    batch = {
        "sample": jnp.asarray(rng.normal(size=shape), jnp.float32),
        "noise": jnp.asarray(rng.normal(size=shape), jnp.float32),
        "timestep": jnp.asarray(rng.integers(0, 1000, size=(size.batch,)), jnp.int32),
        "context": jnp.asarray(rng.normal(size=(size.batch, size.sequence, size.hidden)), jnp.float32),
    }
    inputs = ("sample", "timestep", "context")
    state = initial_state(module, [batch[key] for key in inputs], 0.5)

    def loss(params: Any, state: Any, batch: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, Any]]:
        error = state.apply_fn(params, *(batch[key] for key in inputs)).sample - batch["noise"]
        return jnp.mean(error**2), {"metrics": {"mean_absolute_error": jnp.mean(jnp.abs(error))}}

    return Model("unet", state, batch, loss, apply_gradients)
