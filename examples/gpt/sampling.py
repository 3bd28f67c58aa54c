"""Text from a trained model.

Takes a model and its parameters on one device; gives bytes, drawn one after the other. Invariant: the model sees at
most as many bytes as it was trained with, the last ones.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def sample(
    apply_fn: Callable[..., jax.Array],
    params: Any,
    prompt: str,
    count: int,
    temperature: float,
    seed: int,
    length: int,
) -> str:
    """`prompt` and `count` more bytes.

    Args:
        apply_fn: The model: (params, bytes) -> logits.
        params: Its parameters, on one device.
        prompt: What the model goes on from; its last `length` bytes count.
        count: How many bytes follow.
        temperature: Of the draws; the nearer to 0, the likelier the bytes.
        seed: Of the draws.
        length: How many bytes the model sees.
    """
    given = np.frombuffer(prompt.encode(), np.uint8)[-length:].astype(np.int32)
    window = np.zeros((1, length), np.int32)
    window[0, : len(given)] = given
    drawn = _draw(
        apply_fn,
        params,
        jnp.asarray(window),
        jnp.asarray(len(given)),
        jax.random.key(seed),
        jnp.asarray(temperature),
        count,
    )
    return prompt + bytes(np.asarray(drawn, np.uint8)).decode(errors="replace")


@partial(jax.jit, static_argnames=("apply_fn", "count"))
def _draw(
    apply_fn: Callable[..., jax.Array],
    params: Any,
    window: jax.Array,
    filled: jax.Array,
    key: jax.Array,
    temperature: jax.Array,
    count: int,
) -> jax.Array:
    length = window.shape[1]

    def one_more(carry: tuple[jax.Array, jax.Array], key: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        window, filled = carry
        logits = apply_fn(params, window)[0, filled - 1]
        byte = jax.random.categorical(key, logits / temperature)
        # What is right of the last byte is not seen by it, so a window that is not full may have anything there.
        full = filled == length
        window = jnp.where(full, jnp.roll(window, -1, axis=1), window)
        window = window.at[0, jnp.where(full, length - 1, filled)].set(byte)
        return (window, jnp.minimum(filled + 1, length)), byte

    _, drawn = jax.lax.scan(one_more, (window, filled), jax.random.split(key, count))
    return drawn
