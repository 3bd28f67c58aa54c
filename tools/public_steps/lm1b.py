"""flax `examples/lm1b`: a language model (linen), AdamW, dropout."""

import functools
from pathlib import Path

from jax.sharding import Mesh

from public_steps.step import Step, importing_from


def make(checkout: Path, mesh: Mesh) -> Step:
    """The step of `train.train_step` for two layers of 128 features, with 16 sentences of 64 tokens."""
    with importing_from(checkout / "examples" / "lm1b"):
        import jax
        import models  # pyright: ignore[reportMissingImports]
        import numpy as np
        import optax
        import train  # pyright: ignore[reportMissingImports]
        import utils  # pyright: ignore[reportMissingImports]
        from configs import default  # pyright: ignore[reportMissingImports]

    config = default.get_config()
    config.per_device_batch_size, config.max_target_length = 2, 64
    sizes = {"emb_dim": 128, "num_heads": 8, "num_layers": 2, "qkv_dim": 128, "mlp_dim": 512, "max_len": 64}
    model_config = models.TransformerConfig(
        vocab_size=512,
        output_vocab_size=512,
        dropout_rate=config.dropout_rate,
        attention_dropout_rate=config.attention_dropout_rate,
        dtype=np.float32,
        **sizes,
    )
    schedule = train.create_learning_rate_schedule(config.learning_rate, config.warmup_steps)
    optimizer = optax.adamw(schedule, b1=0.9, b2=0.98, eps=1e-9, weight_decay=config.weight_decay)
    key, init_key = jax.random.split(jax.random.PRNGKey(config.seed))
    model = models.TransformerLM(model_config.replace(deterministic=True))
    state = utils.init_train_state(model, optimizer, config, init_key)
    state = utils.unbox_logicallypartioned_trainstate(state)
    tokens = np.random.default_rng(0).integers(1, 512, (16, 64), dtype=np.int32)

    @functools.wraps(train.train_step)
    def step(state, batch, dropout_key):
        return train.train_step(state, batch, model_config, schedule, 0.0, dropout_rng=dropout_key)

    return Step(
        step,
        (state, {"inputs": tokens}, key),
        following=lambda arguments, result: (result[0], *arguments[1:]),
        loss=lambda result: result[1]["loss"],
        batch=(1,),
        donated=(0,),
    )
