"""flax `examples/seq2seq`: an LSTM encoder and decoder (linen) that add numbers, Adam, typed random keys."""

from pathlib import Path

from jax.sharding import Mesh

from public_steps.step import Step, importing_from


def make(checkout: Path, mesh: Mesh) -> Step:
    """The step of `train.train_step` for 64 hidden features, with 32 additions."""
    with importing_from(checkout / "examples" / "seq2seq"):
        import functools
        import random

        import jax
        import numpy as np
        import train  # pyright: ignore[reportMissingImports]
        from input_pipeline import CharacterTable  # pyright: ignore[reportMissingImports]

    train.FLAGS(["train", "--hidden_size=64"])
    random.seed(0)
    np.random.seed(0)
    table = CharacterTable("0123456789+= ", train.FLAGS.max_len_query_digit)
    key = jax.random.key(0)
    state = train.get_train_state(key, table)

    @functools.wraps(train.train_step)
    def step(state, batch, lstm_key):
        return train.train_step(state, batch, lstm_key, table.eos_id)

    return Step(
        step,
        (state, table.get_batch(32), key),
        following=lambda arguments, result: (result[0], *arguments[1:]),
        loss=lambda result: result[1]["loss"],
        batch=(1,),
    )
