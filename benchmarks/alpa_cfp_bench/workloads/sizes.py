"""How large models and meshes are, and which are raced: names and numbers only, so that a command line needs no jax.

Invariants: the sizes of `TINY` are divisible by 8, so each mesh of up to 8 devices divides them; a step of a model in
its `SIZES` takes 5 to 150 ms on one device of two cores, and that time alone, of plain `jax.jit`, has set the sizes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

BATCH_SIZE = 16
MESH_AXES = ("data", "model")
# What tests and benchmarks run on.
MESHES = ("1x8", "2x4", "2x2")


def mesh_shape(name: str) -> tuple[int, ...]:
    """The sizes of the axes of the mesh called `name`, such as "2x4": `data` and `model`, or more."""
    return tuple(map(int, name.split("x")))


def mesh_axes(shape: Sequence[int]) -> tuple[str, ...]:
    """The names of the axes of a mesh."""
    return MESH_AXES if len(shape) == len(MESH_AXES) else tuple(f"axis{number}" for number in range(len(shape)))


@dataclass(frozen=True)
class Size:
    """How large a model and its batch are; each model uses the fields that it has a meaning for."""

    batch: int
    hidden: int = 32
    layers: int = 2
    heads: int = 8
    sequence: int = 16
    vocabulary: int = 64
    image: int = 16
    channels: int = 8


# For tests.
TINY = Size(batch=BATCH_SIZE)
# For comparisons.
SIZES = {
    "gpt": Size(batch=16, hidden=128, sequence=64, vocabulary=512),
    "llama": Size(batch=16, hidden=128, sequence=64, vocabulary=512),
    "moe": Size(batch=16, hidden=128, sequence=32, vocabulary=512),
    "wide_resnet": Size(batch=32, image=16, channels=32),
    "bert": Size(batch=16, hidden=128, sequence=64, vocabulary=512),
    "mlp": Size(batch=512, hidden=512),
    "conv": Size(batch=32, image=16, channels=32),
    "unet": Size(batch=8),
    "mlp_wide": Size(batch=2, hidden=1024),
    "gpt_wide": Size(batch=2, hidden=384, sequence=64, vocabulary=512),
    "gpt_vocabulary": Size(batch=8, hidden=64, sequence=16, vocabulary=32000),
    "llama_long": Size(batch=2, hidden=64, sequence=256, vocabulary=512),
    "t5": Size(batch=16, hidden=128, sequence=64, vocabulary=512),
    "vit": Size(batch=16, hidden=128, image=32, channels=3),
    "lstm": Size(batch=16, hidden=256, sequence=16, vocabulary=512),
    "gpt_bf16": Size(batch=16, hidden=128, sequence=64, vocabulary=512),
}
# What planners are compared on, each with why it is there. It was written down before any method had been measured on a
# model that was added, and nothing is taken out again, whoever does well on it.
RACED = {
    "gpt": "the transformer that most papers on planners measure",
    "llama": "grouped-query attention and gated layers: products that share an input",
    "moe": "experts: weights that only some tokens use, and two all-to-alls where they are split",
    "wide_resnet": "convolutions with more weights than usual, and norms over the batch",
    "mlp": "many samples, so that communication is nearly all gradients",
    "mlp_wide": "a batch of 2, which cannot be split into 8: only weights can",
    "gpt_wide": "a transformer with a batch of 2: heads and layers have to be split, with embeddings between them",
    "gpt_vocabulary": "a vocabulary of 32,000 beside a narrow model: one table has nearly all parameters and logits",
    "llama_long": "a batch of 2 of long sequences: activations are larger than all weights",
    "t5": "an encoder and a decoder: the encoder's output is used by each layer of the decoder",
    "vit": "a vision transformer: a convolution, then attention whose kernels have a dim for heads, and no vocabulary",
    "unet": "a convolutional net with skip connections: tensors that are used again much later",
    "lstm": "a recurrent net: a loop over the sequence, in which only the batch and the hidden state can be split",
    "gpt_bf16": "bfloat16 with float32 masters: communication of two widths, and casts between them",
}
