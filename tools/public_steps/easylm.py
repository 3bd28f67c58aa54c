"""EasyLM's `models/llama/llama_train.py`: LLaMA (linen), remat, AdamW, sharding constraints that its mesh names."""

from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from public_steps.step import Arguments, CallOfStepError, Step, first_call, importing_from


def make(checkout: Path, mesh: Mesh) -> Step:
    """The `train_step` of `llama_train.main` for its "debug" model, with 16 sentences of 64 tokens.

    `main` defines its step inside itself, so it runs up to the first call of it, with `pjit`s without shardings.
    """
    with importing_from(checkout):
        import functools

        import jax
        import jax.numpy as jnp
        import numpy as np
        from EasyLM.models.llama import (  # pyright: ignore
            llama_model,  # pyright: ignore[reportMissingImports]
            llama_train,  # pyright: ignore[reportMissingImports]
        )

    tokens = np.random.default_rng(0).integers(1, 512, (16, 65), dtype=np.int32)
    batch = {
        "input_tokens": tokens[:, :-1],
        "target_tokens": tokens[:, 1:],
        "loss_masks": np.ones((16, 64), np.float32),
    }

    class Numpy:
        """`jax.numpy`, in which `clip` has the name of an argument that JAX removed."""

        def __getattr__(self, name: str) -> Any:
            return getattr(jnp, name)

        @staticmethod
        def clip(array: Any, a_min: Any) -> Any:
            return jnp.clip(array, min=a_min)

    llama_model.jnp = Numpy()

    class Dataset:
        seq_length = 64
        tokenizer = None

        def __iter__(self):
            yield batch, {}

    def pjit(function: Any, **shardings: Any) -> Any:
        if function.__name__ != "train_step":
            return jax.jit(function)

        def call(*arguments: Any) -> None:
            raise CallOfStepError(function, arguments)

        return call

    llama_train.pjit = pjit
    llama_train.AutoTokenizer.from_pretrained = lambda name: None
    llama_train.DatasetFactory.load_dataset = lambda *arguments: Dataset()
    llama_train.make_shard_and_gather_fns = lambda *arguments: (None, None)
    llama_train.FLAGS(["llama_train"])
    llama = llama_train.FLAGS.llama
    llama.base_model, llama.vocab_size, llama.max_position_embeddings = "debug", 512, 64
    function, arguments = first_call(functools.partial(llama_train.main, []))

    @functools.wraps(function)
    def step(*arguments: Any) -> Any:
        # Its `main` does so; what it asks for is asked only of meshes with all the axes that it names.
        with mesh:
            return function(*arguments)

    def following(arguments: Arguments, result: Any) -> Arguments:
        return result[0], result[1], arguments[2]

    return Step(step, arguments, following, loss=lambda result: result[2]["loss"], batch=(2,), donated=(0, 1))
