"""nanodo's `train.py`: a decoder-only transformer (linen), AdamW in `optax.MultiSteps`, internal metrics."""

from pathlib import Path

from jax.sharding import Mesh

from public_steps.step import Step, importing_from


def make(checkout: Path, mesh: Mesh) -> Step:
    """The step of `train._train_step` for two layers of 128 features, with 16 sentences of 64 tokens.

    The step constrains its batch to the mesh axis `data`.
    """
    with importing_from(checkout):
        import functools

        import jax
        import numpy as np
        from nanodo import model_factory, optimizer, train  # pyright: ignore
        from nanodo.configs import default  # pyright: ignore[reportMissingImports]

    config = default.get_config()
    config.batch_size = 16
    config.model.update({"D": 128, "H": 8, "L": 64, "N": 2, "F": 512, "dtype": "float32", "fsdp_enabled": False})
    model, get_loss = model_factory.get_model_and_loss(config, 512)
    parameters = model.init(jax.random.PRNGKey(config.seed), np.zeros((1, 64), np.int32))["params"]
    state = train.TrainState.create(apply_fn=model.apply, params=parameters, tx=optimizer.get_optimizer(config.opt))
    tokens = np.random.default_rng(0).integers(1, 512, (16, 64), dtype=np.int32)
    return Step(
        functools.partial(train._train_step, c=config, get_loss_fn=get_loss, mesh=mesh),
        (state, tokens),
        following=lambda arguments, result: (result[0], arguments[1]),
        loss=lambda result: result[1]["train_loss"],
        batch=(1,),
        donated=(0,),
    )
