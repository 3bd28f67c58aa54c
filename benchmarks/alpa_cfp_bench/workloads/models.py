"""The models by name: takes a name and a size, gives back state, batch, loss and update (`model.Model`).

Invariant: one that is built is built once a process.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import jax

from alpa_cfp_bench.workloads.language import bert, gpt, gpt_bf16, llama, lstm, moe, t5
from alpa_cfp_bench.workloads.mlp import mlp
from alpa_cfp_bench.workloads.model import Model
from alpa_cfp_bench.workloads.sizes import TINY, Size
from alpa_cfp_bench.workloads.vision import conv, unet, vit, wide_resnet

_BUILDERS: dict[str, Callable[..., Model]] = {
    "mlp": mlp,
    "gpt": gpt,
    "bert": bert,
    "moe": moe,
    "conv": conv,
    "wide_resnet": wide_resnet,
    "unet": unet,
}
# What every program that alpa makes is tested with.
MODELS = tuple(_BUILDERS)
# What there is besides, for tests of CFP and for benchmarks.
_BUILDERS |= {"llama": llama, "t5": t5, "vit": vit, "lstm": lstm, "gpt_bf16": gpt_bf16}
# The same architecture at other sizes, which decide what pays (`sizes.SIZES`).
_BUILDERS |= {"mlp_wide": mlp, "gpt_wide": gpt, "gpt_vocabulary": gpt, "llama_long": llama}
LLAMA_WAYS = ("remat", "scan", "tied", "bf16")


@cache
def _built(name: str, size: Size) -> Model:
    base, *ways = name.split(", ")
    if base not in _BUILDERS or not set(ways) <= set(LLAMA_WAYS if base == "llama" else ()):
        raise ValueError(f"no model is called {name!r}: there are {', '.join(_BUILDERS)}")
    return _BUILDERS[base](size, *ways)


def build(name: str, size: Size = TINY) -> Model:
    """The model called `name`: a key of `sizes.SIZES`; or "llama" and any of LLAMA_WAYS, such as "llama, scan, remat".

    It is made once a process: states of two that were made apart have different trees, since their functions differ.

    Raises:
        ValueError: there is no such model.
    """
    return _built(name, size)


def abstract(name: str, size: Size) -> Model:
    """As `build`, with shapes in the place of arrays: nothing is computed, so a model may be as large as it likes."""
    built: list[Model] = []

    def arrays() -> tuple[Any, Any]:
        built.append(_built.__wrapped__(name, size))
        return built[0].state, built[0].batch

    state, batch = jax.eval_shape(arrays)
    return replace(built[0], state=state, batch=batch)
