"""flax `examples/ogbg_molpcba`: a graph network (linen, jraph), Adam, dropout, typed random keys."""

from pathlib import Path

from jax.sharding import Mesh

from public_steps.step import Step, importing_from


def make(checkout: Path, mesh: Mesh) -> Step:
    """The step of `train.train_step` for two rounds of messages of 64 features, over 31 graphs and one for padding."""
    with importing_from(checkout / "examples" / "ogbg_molpcba"):
        import jax
        import jraph  # pyright: ignore[reportMissingImports]
        import numpy as np
        import train  # pyright: ignore[reportMissingImports]
        from configs import default  # pyright: ignore[reportMissingImports]
        from flax.training import train_state

    config = default.get_config()
    config.message_passing_steps, config.latent_size = 2, 64
    draw = np.random.default_rng(0)

    def graph(nodes: int, edges: int):
        return jraph.GraphsTuple(
            nodes=draw.standard_normal((nodes, 9), dtype=np.float32),
            edges=draw.standard_normal((edges, 3), dtype=np.float32),
            senders=draw.integers(0, nodes, edges, dtype=np.int32),
            receivers=draw.integers(0, nodes, edges, dtype=np.int32),
            globals=draw.integers(0, 2, (1, config.num_classes)).astype(np.float32),
            n_node=np.array([nodes], np.int32),
            n_edge=np.array([edges], np.int32),
        )

    graphs = jraph.batch_np([graph(int(n), int(2 * n)) for n in draw.integers(5, 20, 31)])
    graphs = jraph.pad_with_graphs(graphs, n_node=640, n_edge=1280, n_graph=32)
    key = jax.random.key(0)
    key, init_key, dropout_key = jax.random.split(key, 3)
    parameters = jax.jit(train.create_model(config, deterministic=True).init)(init_key, train.replace_globals(graphs))
    state = train_state.TrainState.create(
        apply_fn=train.create_model(config, deterministic=False).apply,
        params=parameters,
        tx=train.create_optimizer(config),
    )
    return Step(
        train.train_step,
        (state, graphs, {"dropout": dropout_key}),
        following=lambda arguments, result: (result[0], *arguments[1:]),
        loss=lambda result: result[1].loss.total / result[1].loss.count,
        batch=(1,),
    )
