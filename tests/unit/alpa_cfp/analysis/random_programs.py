"""Random small programs of contractions and what stands between them, with their gradients.

Takes a list of instructions, each a number of an operation and of the earlier values that it uses; gives StableHLO. All
values have shape (8, 8, 8), so that any operation applies to any of them.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

SIZE = 8
Instruction = tuple[int, int, int]

Binary = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]

# Each takes two earlier values and a parameter matrix of its own.
OPERATIONS: tuple[Binary, ...] = (
    lambda a, b, w: a @ w,
    lambda a, b, w: jnp.einsum("bsd,ed->bse", a, w),
    lambda a, b, w: jnp.einsum("bqd,bkd->bqk", a, b),
    lambda a, b, w: jnp.einsum("bqk,bkd->bqd", a, b),
    lambda a, b, w: a + b,
    lambda a, b, w: a * b,
    lambda a, b, w: jnp.tanh(a) + w[0],
    lambda a, b, w: a - jnp.mean(a, axis=-1, keepdims=True),
    lambda a, b, w: jax.nn.softmax(a, axis=1) * b,
    lambda a, b, w: jnp.swapaxes(a, 0, 1),
    lambda a, b, w: jnp.swapaxes(a, 1, 2) + b,
    lambda a, b, w: a.reshape(SIZE, 2, SIZE // 2, SIZE).swapaxes(1, 2).reshape(a.shape),
    lambda a, b, w: (a.reshape(SIZE * SIZE, SIZE) @ w).reshape(a.shape),
    lambda a, b, w: jnp.concatenate([a[..., 4:], b[..., :4]], axis=-1),
    lambda a, b, w: jnp.concatenate([a[:4], b[4:]], axis=0),
    lambda a, b, w: jnp.einsum("bsd,bse->de", a, b)[None] + a,
    lambda a, b, w: jnp.einsum("bshd,dk->bshk", a.reshape(SIZE, SIZE, 4, 2), w[:2]).sum(2) + b,
)


def lower(instructions: Sequence[Instruction], *, gradients: bool) -> str:
    """The StableHLO text of a program, with its gradients by input and parameters if `gradients`."""

    def program(x: jax.Array, parameters: list[jax.Array]) -> jax.Array:
        values = [x, jnp.sin(x)]
        for (operation, first, second), parameter in zip(instructions, parameters, strict=True):
            values.append(OPERATIONS[operation](values[first % len(values)], values[second % len(values)], parameter))
        return values[-1]

    def loss(x: jax.Array, parameters: list[jax.Array]) -> jax.Array:
        return jnp.sum(program(x, parameters) ** 2)

    x = jax.ShapeDtypeStruct((SIZE, SIZE, SIZE), jnp.float32)
    parameters = [jax.ShapeDtypeStruct((SIZE, SIZE), jnp.float32) for _ in instructions]
    function = jax.value_and_grad(loss, argnums=(0, 1)) if gradients else program
    return jax.jit(function).trace(x, parameters).lower().as_text()
