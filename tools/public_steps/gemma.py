"""flax `examples/gemma`: a Gemma 3 transformer (nnx), AdamW, dropout, metrics in the state."""

from pathlib import Path

from jax.sharding import Mesh

from public_steps.step import Step, importing_from


def make(checkout: Path, mesh: Mesh) -> Step:
    """The step of `train.jax_train_step` for two layers of 64 features, with 16 sentences of 32 tokens."""
    with importing_from(checkout / "examples" / "gemma"):
        import jax
        import numpy as np
        import optax
        import train  # pyright: ignore[reportMissingImports]
        import transformer  # pyright: ignore[reportMissingImports]
        import transformer_cfg  # pyright: ignore[reportMissingImports]
        from flax import nnx

    kinds = transformer_cfg.AttentionType
    config = transformer_cfg.TransformerConfig.from_dict(
        num_layers=2,
        num_embed=512,
        embed_dim=64,
        hidden_dim=256,
        num_heads=8,
        head_dim=16,
        num_kv_heads=8,
        final_logit_softcap=None,
        attention_types=(kinds.LOCAL_SLIDING, kinds.GLOBAL),
        use_post_attn_norm=True,
        use_post_ffw_norm=True,
        sliding_window_size=16,
        attn_logits_soft_cap=None,
        dtype=np.float32,
        shd_config=transformer_cfg.ShardingConfig.no_sharding(),
    )
    rngs = nnx.Rngs(params=0, dropout=0)
    model = transformer.Transformer(config, rngs=rngs)
    schedule = train.create_learning_rate_schedule(0.0016, 1000)
    optimizer = nnx.Optimizer(model, optax.adamw(schedule, b1=0.9, b2=0.98, eps=1e-9, weight_decay=0.1), wrt=nnx.Param)
    metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"), accuracy=nnx.metrics.Accuracy())
    draw = np.random.default_rng(0)
    tokens = draw.integers(1, 512, (16, 33), dtype=np.int32)
    batch = {
        "inputs": tokens[:, :-1],
        "targets": tokens[:, 1:],
        "inputs_position": np.tile(np.arange(32, dtype=np.int32), (16, 1)),
        "inputs_segmentation": np.ones((16, 32), np.int32),
    }
    graph, state = nnx.split((model, optimizer, rngs, metrics))

    def step(state, batch):
        model, optimizer, rngs, metrics = nnx.merge(graph, state)
        return train.jax_train_step(model, optimizer, rngs, batch, metrics)[0]

    def loss(state):
        total, count = (jax.tree.leaves(state[3]["loss"][name])[0] for name in ("total", "count"))
        return total / count

    return Step(
        step,
        (state, batch),
        following=lambda arguments, result: (result, arguments[1]),
        loss=loss,
        batch=(1,),
        donated=(0,),
    )
