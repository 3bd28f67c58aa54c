"""A recurrent language model in flax: embedding, layers of LSTM, a head.

Takes sizes; gives a flax module with the call of alpa's language models. Invariants: what does not depend on the step
before, the product with the inputs, is one product over all steps; the rest is one `lax.scan` over the sequence.
"""

import jax
import jax.numpy as jnp
from flax import linen as nn

from alpa_cfp_bench.workloads.llama import Output


class LstmLayer(nn.Module):
    """(batch, sequence, any width) -> (batch, sequence, hidden); kernels have a dim for the four gates."""

    hidden: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        of_inputs = nn.DenseGeneral((4, self.hidden), name="input")(x)
        init = nn.initializers.lecun_normal(in_axis=0, out_axis=(1, 2))
        recurrent = self.param("recurrent", init, (self.hidden, 4, self.hidden))
        zeros = jnp.zeros((x.shape[0], self.hidden), x.dtype)

        def step(carry: tuple[jax.Array, jax.Array], gates: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            h, cell = carry
            gates = gates + jnp.einsum("bh,hgk->bgk", h, recurrent)
            kept, added, shown = (nn.sigmoid(gates[:, number]) for number in range(3))
            cell = kept * cell + added * jnp.tanh(gates[:, 3])
            h = shown * jnp.tanh(cell)
            return (h, cell), h

        _, outputs = jax.lax.scan(step, (zeros, zeros), jnp.swapaxes(of_inputs, 0, 1))
        return jnp.swapaxes(outputs, 0, 1)


class Lstm(nn.Module):
    """The language model: token ids (batch, sequence) -> logits over the vocabulary."""

    vocabulary: int
    hidden: int
    layers: int

    @nn.compact
    def __call__(
        self, input_ids: jax.Array, attention_mask: jax.Array, token_type_ids: jax.Array, position_ids: jax.Array
    ) -> Output:
        del attention_mask, token_type_ids, position_ids  # all tokens count, and come one after the other
        x = nn.Embed(self.vocabulary, self.hidden, name="embedding")(input_ids)
        for number in range(self.layers):
            x = LstmLayer(self.hidden, name=f"layer_{number}")(x)
        return Output(nn.Dense(self.vocabulary, use_bias=False, name="head")(x))
