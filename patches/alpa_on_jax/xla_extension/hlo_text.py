"""Makes the text of a compiled program look as Alpa's readers of it expect (`alpa.testing.HloParser`, for one).

Takes optimised HLO and gives back the same program with the parameters of its entry computation called `param`,
`param.1`, `param.2`, ..., as XLA's own partitioner calls those of the programs that it makes. Programs that are
partitioned before XLA sees them keep other names. Invariant: names change and nothing else; where a new name would
collide with one that is there, the text stays as it is.
"""

import re

_ENTRY = re.compile(r"^ENTRY .*?^}", re.MULTILINE | re.DOTALL)
_PARAMETER = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = .*? parameter\((\d+)\)", re.MULTILINE)
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = ", re.MULTILINE)
_WORD = re.compile(r"[\w.-]+")


def with_alpa_parameter_names(text: str) -> str:
    """`text`, which is one HLO module, with the entry's parameters named as above."""
    return _ENTRY.sub(lambda match: _rename(match.group()), text)


def _rename(entry: str) -> str:
    names = {name: f"param.{number}" if number != "0" else "param" for name, number in _PARAMETER.findall(entry)}
    others = set(_INSTRUCTION.findall(entry)) - set(names)
    if not others.isdisjoint(names.values()):
        return entry
    return _WORD.sub(lambda match: names.get(match.group(), match.group()), entry)
