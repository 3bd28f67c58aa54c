"""The programs of one device that say what a device of its kind computes: single operations, and parts of models.

Takes nothing; gives `programs()`, by name. Names stay what they are: what was measured under one can be compiled again
elsewhere, and the schedule of it compared with the measured time. Invariant: a program depends on its name alone, never
on the device. Sizes of models are those of `alpa_cfp_bench.workloads.published` and, of ViT-g, of arXiv 2106.04560,
table 2.

Small operations stand in a program several times, each on arrays of its own and one after the other, since otherwise
the time to dispatch a program would be all that is seen.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from alpa_cfp_bench.workloads.published import SUITES
from benchmarks import device_layers as layers

Build = Callable[[], "DeviceProgram"]

# What decides how often an operation stands in a program, about: a fast device of 2024.
_FLOPS_A_SECOND, _BYTES_A_SECOND = 5e14, 2e12
_LONG_ENOUGH_S, _MOST_TIMES = 150e-6, 8
_MB = 1 << 20
_ROW = 4096
_TYPES = {"bf16": jnp.bfloat16, "f32": jnp.float32}

# (rows, contracted, columns).
_SQUARES = (256, 512, 1024, 2048, 4096, 8192, 16384)
_OF_MODELS = (
    *((8192, 2048, 8192), (8192, 2560, 10240), (8192, 4096, 4096), (8192, 4096, 16384), (8192, 16384, 4096)),
    *((16384, 4096, 11008), (4096, 5120, 13824), (4096, 2048, 51200), (16448, 1408, 6144)),
)
_SKINNY = (
    *((16, 4096, 4096), (128, 4096, 16384), (512, 4096, 4096), (4096, 4096, 64), (8192, 64, 8192), (128, 16384, 128)),
    *((1024, 32768, 1024), (65536, 256, 256)),
)
_F32 = (*_OF_MODELS[:4], *_SKINNY[2:5])
# (batch x heads, rows, contracted, columns).
_BATCHED = (
    *((128, 1024, 64, 1024), (128, 1024, 1024, 64), (512, 1024, 64, 1024), (128, 1024, 80, 1024)),
    *((64, 2048, 128, 2048), (64, 2048, 2048, 128), (256, 1024, 128, 1024), (1024, 257, 88, 257)),
)
_SIZES_MB = (1, 4, 16, 64, 256, 1024)
_POINTWISE = {
    "add f32": ("f32", 2, jnp.add),
    "add bf16": ("bf16", 2, jnp.add),
    "gelu bf16": ("bf16", 1, jax.nn.gelu),
    "cast f32 to bf16": ("f32", 1, lambda x: x.astype(jnp.bfloat16)),
}
_REDUCTIONS = {
    "softmax of rows bf16": ("bf16", 1, jax.nn.softmax),
    "sum of rows f32": ("f32", 1, partial(jnp.sum, axis=-1)),
    "sum of columns f32": ("f32", 1, partial(jnp.sum, axis=0)),
    "sum of columns bf16": ("bf16", 1, partial(jnp.sum, axis=0)),
}
_COPIES = {
    "copy bf16": ("bf16", 1, jnp.copy),
    "transpose bf16": ("bf16", 1, jnp.transpose),
    "transpose f32": ("f32", 1, jnp.transpose),
    # (rows, heads, head dim), as attention does it.
    "heads first bf16": ("bf16", 1, lambda x: jnp.copy(x.reshape(x.shape[0], -1, 128).transpose(1, 0, 2))),
}


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """A function and the shapes that it is compiled for.

    Attributes:
        function: Pytrees of arrays -> pytree of arrays.
        arguments: Pytrees of `jax.ShapeDtypeStruct`, one for each argument.
        times: How many equal operations it does: the time of one is that of the program by this.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    times: int = 1


def programs(*, quick: bool = False) -> dict[str, dict[str, Build]]:
    """What builds each program, by kind and then by name; building traces initial states, so it takes time.

    Args:
        quick: Tiny sizes of the same programs, under other names.
    """
    kinds = {
        "product": _products(quick),
        "pointwise": _streams(_POINTWISE, quick),
        "model": _models(quick),
        "reduction": _streams(_REDUCTIONS, quick),
        "copy": _streams(_COPIES, quick),
        "dispatch": iter([("one addition", _one_addition)]),
    }
    return {kind: dict(found) for kind, found in kinds.items()}


def _one_addition() -> DeviceProgram:
    """Next to nothing: one that does nothing at all would not be run."""
    return DeviceProgram(lambda x: x + 1, (jax.ShapeDtypeStruct((), jnp.float32),))


def _products(quick: bool) -> Iterator[tuple[str, Build]]:
    if quick:
        cases = [("bf16", "nn", (1, 64, 32, 16)), ("f32", "tn", (4, 16, 8, 32))]
    else:
        shapes = [*((size,) * 3 for size in _SQUARES), *_OF_MODELS, *_SKINNY]
        single = [("bf16", shape) for shape in shapes]
        single += [("f32", shape) for shape in (*((size,) * 3 for size in _SQUARES), *_F32)]
        cases = [(dtype, "nn", (1, *shape)) for dtype, shape in single]
        cases += [("bf16", "nn", shape) for shape in _BATCHED]
        # Those of a backward pass, in which one side lies the other way round.
        cases += [("bf16", layout, (1, *_OF_MODELS[3])) for layout in ("nt", "tn")]
        cases += [("bf16", layout, _BATCHED[4]) for layout in ("nt", "tn")]
    for dtype, layout, (batch, *shape) in cases:
        name = f"product {dtype} {layout} {f'{batch} x ' if batch > 1 else ''}{'x'.join(map(str, shape))}"
        yield name, partial(_product, dtype, layout, batch, *shape)


def _product(dtype: str, layout: str, batch: int, rows: int, contracted: int, columns: int) -> DeviceProgram:
    left = (rows, contracted) if layout[0] == "n" else (contracted, rows)
    right = (contracted, columns) if layout[1] == "n" else (columns, contracted)
    dims = ("mk" if layout[0] == "n" else "km", "kn" if layout[1] == "n" else "nk")
    equation = f"b{dims[0]},b{dims[1]}->bmn" if batch > 1 else f"{dims[0]},{dims[1]}->mn"
    lead = (batch,) if batch > 1 else ()
    flops = 2 * batch * rows * contracted * columns
    size_bytes = batch * jnp.dtype(_TYPES[dtype]).itemsize * (rows * contracted + contracted * columns + rows * columns)
    arguments = tuple(jax.ShapeDtypeStruct((*lead, *shape), _TYPES[dtype]) for shape in (left, right))
    return _repeated(partial(jnp.einsum, equation), arguments, flops, size_bytes)


def _streams(operations: dict[str, Any], quick: bool) -> Iterator[tuple[str, Build]]:
    """Operations whose time is that of reading and writing; the size is that of one argument."""
    for operation, (dtype, count, function) in operations.items():
        item = jnp.dtype(_TYPES[dtype]).itemsize
        for size_mb in (1,) if quick else _SIZES_MB:
            shape = jax.ShapeDtypeStruct((size_mb * _MB // item // _ROW, _ROW), _TYPES[dtype])
            name = f"{operation} {size_mb} MB"
            yield name, partial(_repeated, function, (shape,) * count, 0, (count + 1) * size_mb * _MB)


def _repeated(
    operation: Callable[..., Any], arguments: tuple[jax.ShapeDtypeStruct, ...], flops: int, size_bytes: int
) -> DeviceProgram:
    """A program that does a short operation several times, so that it takes long enough to be seen."""
    about_s = max(flops / _FLOPS_A_SECOND, size_bytes / _BYTES_A_SECOND)
    times = max(1, min(_MOST_TIMES, int(_LONG_ENOUGH_S / about_s)))

    def run(*sets: Any) -> tuple[jax.Array, ...]:
        done: tuple[jax.Array, ...] = ()
        for each in sets:
            # Without it the compiler would make one operation of them.
            own, done = lax.optimization_barrier((each, done))
            done = (*done, operation(*own))
        return done

    return DeviceProgram(run, (arguments,) * times, times)


def _models(quick: bool) -> Iterator[tuple[str, Build]]:
    gpt, llama = SUITES["gpt"], SUITES["llama"]
    if quick:
        small = layers.Sizes(64, 4, 128, 32)
        gated = replace(small, gated=True)
        of_layers = {"tiny GPT": (small, 2), "tiny LLaMA": (gated, 2)}
        of_parts = {"tiny": (small, 2)}
        heads, blocks, updates, suites = {"tiny": (64, 128, 64)}, {"tiny": (2, 8, 16)}, (1,), {}
    else:
        vit = layers.Sizes(1408, 16, 6144, 257, causal=False)
        of_layers = {
            **{f"GPT {name}": (layers.Sizes.of(gpt[name]), 8) for name in ("1.3B", "2.6B", "6.7B")},
            **{f"LLaMA {name}": (layers.Sizes.of(llama[name], gated=True), 2) for name in ("7B", "13B")},
            "ViT-g": (vit, 64),
        }
        of_parts = {
            **{f"GPT 1.3B batch {batch}": (layers.Sizes.of(gpt["1.3B"]), batch) for batch in (2, 16)},
            **{f"LLaMA 7B batch {batch}": (layers.Sizes.of(llama["7B"], gated=True), batch) for batch in (1, 4)},
            "ViT-g batch 16": (vit, 16),
        }
        heads = {"GPT 1.3B": (4096, 2048, 51200), "GPT 6.7B": (2048, 4096, 51200), "LLaMA 7B": (8192, 4096, 32000)}
        blocks = {"250M stage 1": (32, 56, 160), "250M stage 3": (32, 14, 640), "1B stage 2": (16, 28, 640)}
        updates = (25, 100, 400)
        suites = {
            "gpt 350M": (2, 8), "gpt 1.3B": (1, 8), "gpt 2.6B": (1, 4), "moe 380M": (2, 8), "moe 2.4B": (2, 4),
            "wide_resnet 250M": (4, 16), "llama 7B": (1, 2),
        }  # fmt: skip
    for name, (sizes, batch) in of_layers.items():
        for way in ("forward", "gradient", "step"):
            yield f"layer {way} {name} batch {batch}", partial(_part, layers.layer, way, sizes, batch)
    for name, (sizes, batch) in of_parts.items():
        yield f"attention gradient {name}", partial(_part, layers.attention, "gradient", sizes, batch)
        yield f"mlp gradient {name}", partial(_part, layers.mlp, "gradient", sizes, batch)
        yield f"norm gradient {name}", partial(_part, layers.norm, "gradient", sizes, batch)
    for name, shape in heads.items():
        yield f"embedding and loss {name}", lambda shape=shape: DeviceProgram(*layers.embedding_and_loss(*shape))
    for name, shape in blocks.items():
        for dtype, kind in _TYPES.items():
            make = partial(layers.residual_block, *shape, jnp.dtype(kind))
            yield f"Wide-ResNet block {dtype} {name}", lambda make=make: DeviceProgram(*make())
    for millions in updates:
        make = partial(layers.update_alone, millions * 1_000_000)
        yield f"Adam of {millions}M parameters", lambda make=make: DeviceProgram(*make())
    for name, (depth, samples) in suites.items():
        yield f"suite step {name} layers {depth} batch {samples}", partial(_suite_step, name, depth, samples)


def _part(part: layers.Part, way: str, sizes: layers.Sizes, batch: int) -> DeviceProgram:
    return DeviceProgram(*layers.program(part, way, sizes, batch))


def _suite_step(name: str, depth: int, samples: int) -> DeviceProgram:
    """A whole training step as Alpa's benchmark has it, of fewer layers; of a Wide-ResNet each stage has one block."""
    from alpa_cfp_bench.workloads.published_programs import program_of  # only these programs need alpa

    suite, size = name.split()
    case = replace(SUITES[suite][size], layers=depth, batch=samples, micro_batches=1, mesh=(1, 1))
    if case.stages:
        case = replace(case, stages=(1,) * depth)
    found = program_of(case)
    return DeviceProgram(found.step, (found.state, found.batch))
