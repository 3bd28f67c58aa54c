"""A rule that makes a published model small enough for a CPU: takes a case, gives a smaller one of the same shape.

The rule: two numbers. Everything that makes a model wide (hidden, heads, MLP, experts, channels; sequence, vocabulary,
image, classes) is divided by `width`; what makes it deep (layers, residual blocks of a stage) by `depth`. What comes
out is rounded down to a multiple of 8, and is no smaller than a floor below which nothing is left to be split. So
ratios within a model, and between models that are scaled alike, stay what they were but for rounding.

Invariants, of any case: a scaled size is divisible by 8 (layers, residual blocks and how much wider a Wide-ResNet is
are counts and not split); heads divide hidden; nothing is larger than it was; multiples of a divisor never give more.
"""

from dataclasses import replace

from alpa_cfp_bench.workloads.published import Case
from alpa_cfp_bench.workloads.sizes import Size

GRANULE = 8
# Below these a size says nothing of the original; each is at most the smallest published one.
FLOORS = {
    "heads": 8,
    "sequence": 32,
    "vocabulary": 256,
    "experts": 8,
    "expert_group": 64,
    "image": 32,
    "channels": 8,
    "classes": 8,
}
_LEAST_HEAD = 8
# What a step on a CPU of two cores can be, in well under a second.
WIDEST, LARGEST_IMAGE, DEEPEST, SAMPLES, DEVICES = 256, 32, 4, 16, 8


def scaled(case: Case, width: int, depth: int) -> Case:
    """A case divided by `width` and `depth`, on the mesh that it had.

    Raises:
        ValueError: a divisor is no whole number of at least 1.
    """
    if width < 1 or depth < 1:
        raise ValueError(f"divisors are at least 1, not {width} and {depth}")
    sizes = {name: _divided(getattr(case, name), width, GRANULE, floor) for name, floor in FLOORS.items()}
    if case.hidden:
        granule = GRANULE * sizes["heads"]
        hidden = _divided(case.hidden, width, granule, _LEAST_HEAD * sizes["heads"])
        # An MLP is as many times wider than the model as it was, whatever hidden was rounded to.
        sizes |= {"hidden": hidden, "intermediate": _down(case.intermediate * hidden // case.hidden, GRANULE)}
    return replace(
        case,
        layers=max(1, case.layers // depth),
        stages=tuple(max(1, blocks // depth) for blocks in case.stages),
        **sizes,
    )


def for_cpu(case: Case) -> Case:
    """A case as small as a CPU needs it, with as many samples and on as many virtual devices.

    Divisors are the least powers of two with which hidden, or the inner convolutions of a Wide-ResNet's first stage,
    are no wider than `WIDEST`, images have at most `LARGEST_IMAGE` pixels a side, and the model is no deeper than
    `DEEPEST`. A mesh of several nodes becomes two nodes of four.
    """
    widest = case.hidden or case.channels * case.width
    deepest = max(case.stages, default=case.layers)
    width = max(_power(widest, WIDEST), _power(case.image, LARGEST_IMAGE))
    small = scaled(case, width, _power(deepest, DEEPEST))
    mesh = case.mesh if case.devices <= DEVICES else (2, DEVICES // 2)
    return replace(small, mesh=mesh, batch=min(case.batch, SAMPLES), micro_batches=1)


def size_of(case: Case) -> Size:
    """The case for this project's own model of its kind, which `alpa-cfp bench --model <suite>` runs."""
    return Size(
        batch=case.samples,
        hidden=case.hidden or case.classes,
        layers=case.layers,
        heads=case.heads or GRANULE,
        sequence=case.sequence or GRANULE,
        vocabulary=case.vocabulary or case.classes,
        image=case.image or GRANULE,
        channels=case.channels or GRANULE,
    )


def bench_command(case: Case) -> str:
    """The command that compares the methods on a scaled case: "alpa-cfp bench --model gpt --mesh 2x4 --size ..."."""
    size = size_of(case)
    of_images, of_language = ("image", "channels"), ("hidden", "layers", "heads", "sequence", "vocabulary")
    fields = ("batch", *(of_images if case.stages else of_language))
    sizes = " ".join(f"{name}={getattr(size, name)}" for name in fields)
    return f"alpa-cfp bench --model {case.suite} --mesh {case.mesh[0]}x{case.mesh[1]} --size {sizes}"


def _divided(size: int, divisor: int, granule: int, floor: int) -> int:
    """A size by a divisor; 0 stays what has no meaning."""
    return max(floor, _down(size // divisor, granule)) if size else 0


def _down(size: int, granule: int) -> int:
    return size // granule * granule


def _power(size: int, most: int) -> int:
    """The least power of two by which `size` is at most `most`."""
    divisor = 1
    while size // divisor > most:
        divisor *= 2
    return divisor
