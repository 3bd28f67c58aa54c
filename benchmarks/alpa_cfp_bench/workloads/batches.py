"""Batches for language models: takes their sizes, gives back arrays of int32, the same ones each time."""

import jax
import jax.numpy as jnp
import numpy as np


def next_tokens(batch: int, sequence: int, vocabulary: int) -> dict[str, jax.Array]:
    """Sentences whose labels are their next tokens."""
    rng = np.random.default_rng(0)
    shape = (batch, sequence)
    # Tokens of the upper quarter of the vocabulary do not occur: those rows get no gradient through the input.
    tokens = rng.integers(0, vocabulary * 3 // 4, size=(batch, sequence + 1))
    return {
        "input_ids": jnp.asarray(tokens[:, :-1], jnp.int32),
        "labels": jnp.asarray(tokens[:, 1:], jnp.int32),
        "attention_mask": jnp.ones(shape, jnp.int32),
        "token_type_ids": jnp.zeros(shape, jnp.int32),
        "position_ids": jnp.broadcast_to(jnp.arange(sequence, dtype=jnp.int32), shape),
    }


def masked_sentences(batch: int, sequence: int, vocabulary: int) -> dict[str, jax.Array]:
    """Sentences of different lengths, padded; in each as many tokens are masked, so that all samples weigh the same."""
    rng = np.random.default_rng(0)
    shape = (batch, sequence)
    padding, mask = 0, 1
    positions = np.broadcast_to(np.arange(sequence), shape)
    shortest = sequence // 2
    is_token = positions < rng.integers(shortest, sequence + 1, size=(batch, 1))
    tokens = np.where(is_token, rng.integers(2, vocabulary, size=shape), padding)
    is_masked = rng.permuted(positions[:, :shortest], axis=1) < sequence // 4
    is_masked = np.pad(is_masked, ((0, 0), (0, sequence - shortest)))
    arrays = {
        "input_ids": np.where(is_masked, mask, tokens),
        "labels": np.where(is_masked, tokens, padding),
        "attention_mask": is_token,
        "token_type_ids": positions * 8 // sequence,
        "position_ids": positions,
    }
    return {name: jnp.asarray(array, jnp.int32) for name, array in arrays.items()}


def translations(batch: int, sequence: int, vocabulary: int) -> dict[str, jax.Array]:
    """Source sentences of different lengths, padded, with targets half as long, whose labels are their next tokens."""
    rng = np.random.default_rng(0)
    is_token = np.arange(sequence) < rng.integers(sequence // 2, sequence + 1, size=(batch, 1))
    source = np.where(is_token, rng.integers(1, vocabulary, size=(batch, sequence)), 0)
    target = rng.integers(1, vocabulary * 3 // 4, size=(batch, sequence // 2 + 1))
    arrays = {
        "source_ids": source,
        "source_mask": is_token,
        "target_ids": target[:, :-1],
        "labels": target[:, 1:],
    }
    return {name: jnp.asarray(array, jnp.int32) for name, array in arrays.items()}
