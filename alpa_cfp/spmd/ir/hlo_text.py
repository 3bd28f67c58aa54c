"""Makes the text of a compiled program look as Alpa's readers of it expect (`alpa.testing.HloParser`, for one).

Takes optimised HLO and gives back the same program

- with the parameters of its entry computation called `param`, `param.1`, `param.2`, ..., as XLA's own partitioner calls
  those of the programs that it makes. Programs that are partitioned before XLA sees them keep other names;
- with a channel number at every collective, by which `alpa.util.count_communication_primitives` counts. Collectives
  among replicas, as these programs have them, need none;
- with the shapes of what an all-reduce takes, by which the same function tells those of scalars.

Invariant: the program stays the same; where a new name would collide with one that is there, the names stay.
"""

import itertools
import re

_ENTRY = re.compile(r"^ENTRY .*?^}", re.MULTILINE | re.DOTALL)
_PARAMETER = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = .*? parameter\((\d+)\)", re.MULTILINE)
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = ", re.MULTILINE)
_WORD = re.compile(r"[\w.-]+")
_COLLECTIVE = re.compile(
    r"^(?P<head>.* = (?:\(.*\)|\S+) "
    r"(?:all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\([^()]*\))(?P<rest>.*)$",
    re.MULTILINE,
)
_CHANNEL = re.compile(r"channel_id=(\d+)")


def as_alpa_reads_it(text: str) -> str:
    """`text`, which is one HLO module, as described above."""
    return with_channels(with_alpa_parameter_names(text))


def with_alpa_parameter_names(text: str) -> str:
    """`text`, which is one HLO module, with the entry's parameters named as above."""
    return _ENTRY.sub(lambda match: _rename(match.group()), text)


def _rename(entry: str) -> str:
    names = {name: f"param.{number}" if number != "0" else "param" for name, number in _PARAMETER.findall(entry)}
    others = set(_INSTRUCTION.findall(entry)) - set(names)
    if not others.isdisjoint(names.values()):
        return entry
    return _WORD.sub(lambda match: names.get(match.group(), match.group()), entry)


def with_channels(text: str) -> str:
    """`text` with a channel at every collective."""
    unused = itertools.count(max(map(int, _CHANNEL.findall(text)), default=0) + 1)

    def complete(match: re.Match[str]) -> str:
        if _CHANNEL.search(match["rest"]):
            return match.group()
        return f"{match['head']}, channel_id={next(unused)}{match['rest']}"

    return _COLLECTIVE.sub(complete, text)
