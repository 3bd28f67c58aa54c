"""Reading the communication of a compiled program from its optimised HLO."""

import math
import re

from alpa_cfp.spmd.errors import InternalError
from alpa_cfp.spmd.module.partitioned import Collective
from alpa_cfp.spmd.shardings.sharding import Axis, LogicalMesh

_KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
_COLLECTIVE = re.compile(rf"= (?P<result>\(.*?\)|\S+) (?P<kind>{_KINDS})(?P<start>-start)?\(")
# "f32[8,16]{1,0}", "pred[]", with a bound in place of a dim "f32[<=8]", and packed "s4[8]{0:E(4)}".
_ARRAY = re.compile(r"\b(?P<type>\w+)\[(?P<dims>[\d,<=]*)\](?:\{[^}]*?E\((?P<packed>\d+)\))?")
# The first number in a type's name is its bits, whatever its format: "bf16", "s4", "f8e4m3fn", "c64".
_NUMBERED_TYPE = re.compile(r"[a-z]+(\d+)")
_BYTES_OF_OTHER_TYPES = {"pred": 1, "token": 0}
_GROUPS = re.compile(r"replica_groups=(?:\{\{([\d,]*)\}|\[(\d+),(\d+)\])")
# What XLA's partitioner writes: "mesh['a'=2,'b'=4] {'b'}", of a part of an axis "{'b':(2)2}"; or without quotes.
_GROUPS_OF_MESH = re.compile(r"mesh\[(?P<mesh>[^\]]*)\][^{]*\{(?P<axes>[^}]*)\}")
_AXIS_SIZE = re.compile(r"([^',]+)'?=(\d+)")
_AXIS = re.compile(r"([^',:]+)'?(?::\((\d+)\)(\d+))?")


def collectives_of_hlo(text: str) -> tuple[Collective, ...]:
    """The communication ops of a program, from its optimised HLO text; one that XLA has put together counts once,
    as does one in a loop, however often that runs.

    `size_bytes` is that of one device's operand.

    Raises:
        InternalError: an element type whose size is not known.
    """
    return tuple(
        _read(match["kind"], match["result"], text[match.end() : text.find("\n", match.end())], bool(match["start"]))
        for match in _COLLECTIVE.finditer(text)
    )


def _read(kind: str, result: str, rest: str, starts: bool) -> Collective:
    group_size = _group_size(rest)
    size = sum(map(_array_bytes, _ARRAY.finditer(result)))
    # What starts a collective gives its operands along with its results, except for an all-reduce.
    if kind == "all-gather":
        size //= group_size + starts
    elif kind == "reduce-scatter":
        size = size * group_size // (group_size + 1) if starts else size * group_size
    elif kind in ("all-to-all", "collective-permute"):
        size //= 1 + starts
    if kind == "collective-permute":
        group_size = 2
    return Collective(kind, size, group_size)


def _group_size(rest: str) -> int:
    if groups := _GROUPS.search(rest):
        return int(groups[3]) if groups[3] else groups[1].count(",") + 1
    if (found := groups_on_mesh(rest)) is not None:
        return math.prod(axis.size for axis in found[1])
    return 1


def groups_on_mesh(text: str) -> tuple[LogicalMesh, tuple[Axis, ...]] | None:
    """The mesh, and the axes along which groups of devices lie; None for groups that are written in another way.

    Args:
        text: What stands behind `replica_groups=`, or something that has it.
    """
    groups = _GROUPS_OF_MESH.search(text)
    if groups is None:
        return None
    sizes = {name: int(size) for name, size in _AXIS_SIZE.findall(groups["mesh"])}
    numbers = {name: number for number, name in enumerate(sizes)}
    axes = _AXIS.findall(groups["axes"])
    return LogicalMesh(tuple(sizes.values())), tuple(
        Axis(numbers[name], int(pre or 1), int(part or sizes[name])) for name, pre, part in axes
    )


def _array_bytes(array: re.Match[str]) -> int:
    elements = math.prod(int(dim.removeprefix("<=")) for dim in array["dims"].split(",") if dim)
    if array["packed"]:
        return math.ceil(elements * int(array["packed"]) / 8)
    return elements * _element_bytes(array["type"])


def _element_bytes(name: str) -> int:
    """The bytes of an element of XLA's type `name`; one of less than a byte takes one, unless its layout packs it."""
    if name in _BYTES_OF_OTHER_TYPES:
        return _BYTES_OF_OTHER_TYPES[name]
    numbered = _NUMBERED_TYPE.match(name)
    if numbered is None:
        raise InternalError(f"XLA communicates elements of the type {name!r}, whose size is not known")
    return math.ceil(int(numbered[1]) / 8)
