"""flax `examples/imagenet`: a ResNet with batch normalisation (linen), momentum, a step for `jax.pmap`."""

from pathlib import Path

from jax.sharding import Mesh

from public_steps.step import Step, importing_from


def make(checkout: Path, mesh: Mesh) -> Step:
    """The step of `train.train_step` for four blocks of 16 to 128 channels, with 16 images of 32x32 pixels.

    The program runs its step by `jax.pmap`, which names the axis `batch`. Here `jax.vmap` over an axis of size one
    names it: one replica has the whole batch.
    """
    with importing_from(checkout / "examples" / "imagenet"):
        import functools

        import jax
        import models  # pyright: ignore[reportMissingImports]
        import numpy as np
        import train  # pyright: ignore[reportMissingImports]
        from configs import default  # pyright: ignore[reportMissingImports]

    config = default.get_config()
    resnet = functools.partial(models.ResNet, stage_sizes=[1, 1, 1, 1], block_cls=models.ResNetBlock, num_filters=16)
    model = train.create_model(model_cls=resnet, half_precision=False)
    schedule = train.create_learning_rate_fn(config, config.learning_rate, steps_per_epoch=10)
    state = train.create_train_state(jax.random.key(0), config, model, 32, schedule)
    draw = np.random.default_rng(0)
    batch = {
        "image": draw.standard_normal((16, 32, 32, 3), dtype=np.float32),
        "label": draw.integers(0, train.NUM_CLASSES, 16, dtype=np.int32),
    }
    one_replica = jax.vmap(
        functools.partial(train.train_step, learning_rate_fn=schedule),
        in_axes=(None, 0),
        out_axes=(None, None),
        axis_size=1,
        axis_name="batch",
    )

    def step(state, batch):
        return one_replica(state, jax.tree.map(lambda x: x[None], batch))

    return Step(
        step,
        (state, batch),
        following=lambda arguments, result: (result[0], arguments[1]),
        loss=lambda result: result[1]["loss"],
        batch=(1,),
        donated=(0,),
    )
