"""How large models and meshes are: names and numbers only, so that a command line can be read without jax.

Invariants: the sizes of `TINY` are divisible by 8, so each mesh of up to 8 devices divides them; a step of a model in
its `SIZES` takes 20 to 100 ms on two cores.
"""

from dataclasses import dataclass

BATCH_SIZE = 16
MESH_AXES = ("data", "model")
# What tests and benchmarks run on.
MESHES = ("1x8", "2x4", "2x2")


def mesh_shape(name: str) -> tuple[int, int]:
    """The sizes of the axes `data` and `model` of the mesh called `name`, such as "2x4"."""
    data, model = name.split("x")
    return int(data), int(model)


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
}
