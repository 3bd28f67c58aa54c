"""The chips that plans can be made for: peaks, memory, links, and what their compilers have to know.

Takes a chip's name, or a TOML file; gives a `Chip`. The files in `data/` are the chips that are known by name, with the
source of each figure in them (`sources`): the vendors' public specifications, XLA's descriptions of GPUs and libtpu for
what a program can have of the memory, NCCL's tuning constants and the book "How To Scale Your Model" for latencies. A
user's own chip is a file in the same form. Invariant: every figure of a `Chip` is positive, and its parts are those of
its kind: a GPU has links and an architecture, a TPU has a torus and slices.
"""

import difflib
import functools
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Literal, cast, get_args

from alpa_cfp import quantities
from alpa_cfp.targets.chip_fields import Fields
from alpa_cfp.targets.errors import TargetError

Kind = Literal["gpu", "tpu"]
LinkKind = Literal["nvlink", "pcie", "network"]
# Of matrix products, dense. "f32" is without tf32 on GPUs; TPUs have none of their own.
ELEMENT_TYPES = ("bf16", "f16", "f32", "tf32", "f64", "f8", "s8")


@dataclass(frozen=True, slots=True)
class Link:
    """How a GPU reaches others.

    Attributes:
        name: For readers: "NVLink 4".
        kind: "nvlink", "pcie" or "network".
        bytes_per_s: What one device sends while it receives as much, by the vendor's figures.
        reduces: Whether the switch adds numbers up (NVLink SHARP).
        shared_by: How many neighbouring devices have one adapter together; `bytes_per_s` is the part of one.
        extra_latency_s: What a hop takes beyond NCCL's own tables, which are of NVLink, PCIe and InfiniBand.
    """

    name: str
    kind: LinkKind
    bytes_per_s: float
    reduces: bool = False
    shared_by: int = 1
    extra_latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Torus:
    """The links of TPUs to their neighbours (ICI).

    Attributes:
        dims: The number of dims of the torus; a device has up to two links in each.
        bytes_per_s: Of one link, each way.
        latency_s: Of one hop.
        ring_multiple: A dim whose size is a multiple of this is a ring; others are lines.
        rings_together: Whether dims are rings only where all are: the slice then is made of whole cubes.
    """

    dims: int
    bytes_per_s: float
    latency_s: float
    ring_multiple: int
    rings_together: bool

    def rings(self, shape: tuple[int, ...]) -> tuple[bool, ...]:
        """Which dims of a slice are rings.

        Sources: docs.cloud.google.com/tpu/docs/v4 (a torus where each dim is a multiple of 4), and for v5e and v6e,
        whose pods are 16 x 16, the book "How To Scale Your Model", part 2.
        """
        closed = tuple(size % self.ring_multiple == 0 for size in shape)
        return closed if not self.rings_together or all(closed) else (False,) * len(shape)


@dataclass(frozen=True, slots=True)
class Architecture:
    """What XLA has to know of a GPU beside its rates (`GpuDeviceInfoProto`).

    Attributes:
        compute_capability: As CUDA writes it: "8.0", "9.0a".
        f32_units_per_core: Of a streaming multiprocessor.
        l2_bytes: The second-level cache.
        shared_memory_per_core_bytes: Of a streaming multiprocessor.
        shared_memory_per_block_bytes: The most that a block may ask for.
    """

    compute_capability: str
    f32_units_per_core: int
    l2_bytes: int
    shared_memory_per_core_bytes: int
    shared_memory_per_block_bytes: int


@dataclass(frozen=True, slots=True)
class SliceShapes:
    """The slices of a TPU that exist, and what libtpu calls them.

    Attributes:
        compiler_name: Of the chip in libtpu's topologies: "v5e".
        accelerator_type: The first part of a slice's name in Google Cloud, whose second counts cores: "v5litepod".
        megacore: Whether the cores of a chip are one device, which libtpu has to be told.
        shapes: The shapes that are offered.
        host: The chips of one host.
        one_host: The shapes that are one host, whatever `host` says.
        cube: Shapes whose sizes are multiples of this, in ascending order, are offered too; 0 for none.
        most_chips: Of such a shape.
    """

    compiler_name: str
    accelerator_type: str
    megacore: bool
    shapes: tuple[tuple[int, ...], ...]
    host: tuple[int, ...]
    one_host: tuple[tuple[int, ...], ...]
    cube: int = 0
    most_chips: int = 0

    def has(self, shape: tuple[int, ...]) -> bool:
        """Whether there are slices of a shape."""
        return shape in self.shapes or (
            self.cube > 0
            and len(shape) == len(self.host)
            and all(size > 0 and size % self.cube == 0 for size in shape)
            and list(shape) == sorted(shape)
            and math.prod(shape) <= self.most_chips
        )

    def host_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The chips of one host of a slice."""
        return shape if shape in self.one_host else self.host

    def described(self) -> str:
        """The slices that exist, for an error."""
        named = ", ".join(map(quantities.shape, self.shapes))
        if not self.cube:
            return named
        return f"{named}, and multiples of {self.cube} in ascending order with up to {self.most_chips:,} chips"


@dataclass(frozen=True, slots=True)
class Chip:
    """One kind of device.

    Attributes:
        name: Its name in targets.
        kind: "gpu" or "tpu".
        device_kind: What JAX calls such a device.
        flops_per_s: Dense peak operations by element type (`ELEMENT_TYPES`), a multiplication and an addition being
            two. A type without a rate of its own is missing.
        memory_bytes: What a program can have of the memory: of the nominal size a part is the system's.
        memory_bytes_per_s: Peak bandwidth of the memory.
        cores: Streaming multiprocessors; tensor cores of a TPU.
        clock_hz: The highest clock of a GPU; of a TPU that of its peak, by which its compiler's cycles are seconds.
        sources: Where the figures are from.
        inner, outer: The links of a GPU inside a host and between hosts.
        most_devices_per_host: The GPUs that `inner` joins at most.
        architecture: A GPU's.
        ici: The links of a TPU.
        slices: The slices of a TPU.
    """

    name: str
    kind: Kind
    device_kind: str
    flops_per_s: Mapping[str, float] = field(hash=False)
    memory_bytes: int
    memory_bytes_per_s: float
    cores: int
    clock_hz: float
    sources: tuple[str, ...]
    inner: Link | None = None
    outer: Link | None = None
    most_devices_per_host: int = 0
    architecture: Architecture | None = None
    ici: Torus | None = None
    slices: SliceShapes | None = None

    @classmethod
    def named(cls, name: str) -> "Chip":
        """A chip that is known by name.

        Raises:
            TargetError: there is none of this name.
        """
        known = chip_names()
        if name not in known:
            raise TargetError.unknown_chip(name, known, difflib.get_close_matches(name, known, 1))
        return _known(name)

    @classmethod
    def from_file(cls, path: Path | str) -> "Chip":
        """The chip that a TOML file describes, in the form of those in `alpa_cfp/targets/data`.

        Raises:
            TargetError: the file cannot be read, or lacks a field, or has a wrong or an unknown one.
        """
        path = Path(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TargetError.unreadable_file(path, str(error)) from error
        return _read(text, path)


@functools.cache
def chip_names() -> tuple[str, ...]:
    """The chips that are known by name."""
    files = (resources.files("alpa_cfp.targets") / "data").iterdir()
    return tuple(sorted(each.name.removesuffix(".toml") for each in files if each.name.endswith(".toml")))


@functools.cache
def _known(name: str) -> Chip:
    file = resources.files("alpa_cfp.targets") / "data" / f"{name}.toml"
    return _read(file.read_text(encoding="utf-8"), Path(f"{name}.toml"))


def _read(text: str, path: Path) -> Chip:
    try:
        fields = Fields(tomllib.loads(text), path)
    except tomllib.TOMLDecodeError as error:
        raise TargetError.unreadable_file(path, str(error)) from error
    kind = cast(Kind, fields.one_of("kind", get_args(Kind)))
    chip = Chip(
        fields.text("name", "the chip's name in targets"),
        kind,
        fields.text("device_kind", "what JAX calls such a device"),
        fields.table("flops_per_s", "the peaks of matrix products").numbers(ELEMENT_TYPES, needed="bf16"),
        fields.whole("memory_bytes"),
        fields.number("memory_bytes_per_s"),
        fields.whole("cores"),
        fields.number("clock_hz"),
        fields.texts("sources", "where the figures are from"),
    )
    if kind == "gpu":
        chip = replace(
            chip,
            inner=_link(fields.table("inner", "the link to the other GPUs of the host")),
            outer=_link(fields.table("outer", "the link to GPUs of other hosts")),
            most_devices_per_host=fields.whole("most_devices_per_host"),
            architecture=_architecture(fields.table("compiler", "what XLA has to know of the GPU")),
        )
    else:
        ici = _torus(fields.table("ici", "the links to neighbours in the torus"))
        slices = _slices(fields.table("slices", "the slices that exist"), ici.dims)
        chip = replace(chip, ici=ici, slices=slices)
    fields.end()
    return chip


def _link(fields: Fields) -> Link:
    link = Link(
        fields.text("name", "for readers"),
        cast(LinkKind, fields.one_of("kind", get_args(LinkKind))),
        fields.number("bytes_per_s"),
        fields.truth("reduces") if "reduces" in fields else False,
        fields.whole("shared_by") if "shared_by" in fields else 1,
        fields.number("extra_latency_s") if "extra_latency_s" in fields else 0.0,
    )
    fields.end()
    return link


def _architecture(fields: Fields) -> Architecture:
    architecture = Architecture(
        fields.matching("compute_capability", r"\d+\.\d+a?", 'it is as CUDA writes it: "9.0a"'),
        fields.whole("f32_units_per_core"),
        fields.whole("l2_bytes"),
        fields.whole("shared_memory_per_core_bytes"),
        fields.whole("shared_memory_per_block_bytes"),
    )
    fields.end()
    return architecture


def _torus(fields: Fields) -> Torus:
    torus = Torus(
        fields.whole("dims", most=3),
        fields.number("bytes_per_s"),
        fields.number("latency_s"),
        fields.whole("ring_multiple"),
        fields.truth("rings_together"),
    )
    fields.end()
    return torus


def _slices(fields: Fields, dims: int) -> SliceShapes:
    cube = fields.whole("cube") if "cube" in fields else 0
    slices = SliceShapes(
        fields.text("compiler_name", "what libtpu calls the chip"),
        fields.text("accelerator_type", "what Google Cloud calls its slices"),
        fields.truth("megacore"),
        fields.shapes("shapes", dims),
        fields.shape("host", dims),
        fields.shapes("one_host", dims),
        cube,
        fields.whole("most_chips") if cube else 0,
    )
    fields.end()
    return slices
