"""Reading the communication of a compiled program from its optimised HLO."""

import math
import re

from alpa_cfp.spmd.module.partitioned import Collective

_KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"
_COLLECTIVE = re.compile(rf"= (?P<result>\(.*?\)|\S+) (?P<kind>{_KINDS})(?P<start>-start)?\(")
# Arrays of elements of whole bytes: "f32[8,16]", "pred[]".
_ARRAY = re.compile(r"\b(?:pred|(?:bf|[cfsu])(8|16|32|64|128))\[([\d,]*)\]")
_GROUPS = re.compile(r"replica_groups=(?:\{\{([\d,]*)\}|\[(\d+),(\d+)\])")
# What XLA's partitioner writes: "mesh['a'=2,'b'=4] {'b'}", of a part of an axis "{'b':(2)2}"; or without quotes.
_GROUPS_OF_MESH = re.compile(r"replica_groups=mesh\[(?P<mesh>[^\]]*)\][^{]*\{(?P<axes>[^}]*)\}")
_AXIS_SIZE = re.compile(r"([^',]+)'?=(\d+)")
_AXIS = re.compile(r"([^',:]+)'?(?::\(\d+\)(\d+))?")


def collectives_of_hlo(text: str) -> tuple[Collective, ...]:
    """The communication ops of a program, from its optimised HLO text; one that XLA has put together counts once,
    as does one in a loop, however often that runs.

    `size_bytes` is that of one device's operand.
    """
    return tuple(
        _read(match["kind"], match["result"], text[match.end() : text.find("\n", match.end())], bool(match["start"]))
        for match in _COLLECTIVE.finditer(text)
    )


def _read(kind: str, result: str, rest: str, starts: bool) -> Collective:
    group_size = _group_size(rest)
    size = sum(_array_bytes(*array) for array in _ARRAY.findall(result))
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
    if groups := _GROUPS_OF_MESH.search(rest):
        sizes = dict(_AXIS_SIZE.findall(groups["mesh"]))
        return math.prod(int(part or sizes[name]) for name, part in _AXIS.findall(groups["axes"]))
    return 1


def _array_bytes(bits: str, dims: str) -> int:
    return math.prod(int(d) for d in dims.split(",") if d) * int(bits or 8) // 8
