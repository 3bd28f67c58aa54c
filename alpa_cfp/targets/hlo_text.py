"""The scheduled program of a compiler, read from its text.

Takes the text of a compiled module, of XLA:GPU or of a TPU (`compiled.as_text()`); gives its computations with their
instructions in the order of the schedule: shapes, operands, called computations. It reads line by line and keeps
attributes as texts until someone asks. Invariants: an instruction's operands stand before it in its computation, and
every computation that is called exists; a text that says otherwise is refused with its line. The time to read is
proportional to the text.

The grammar is XLA's (openxla/xla, `xla/hlo/parser/hlo_parser.cc`), as far as scheduled modules use it.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from alpa_cfp.targets.errors import SHOWN, HloTextError

# The memory in which arrays of a program are; TPUs have others on the chip, which texts number from 1.
MAIN_MEMORY = 0
# Space 5 is the host's (openxla/xla, `xla/layout.h`); others are of the chip.
HOST_MEMORY = 5

_COMPUTATION = re.compile(r"(ENTRY )?%([\w.-]+) \(")
_INSTRUCTION = re.compile(r"\s+(ROOT )?%([\w.-]+) = ")
_ARRAY = re.compile(r"([a-z]\w*)\[([^\]]*)\](?:\{([^}]*)\})?")
_OPCODE = re.compile(r" ([a-z][a-z0-9-]*)\(")
_NAME = re.compile(r"%([\w.-]+)")
_QUOTED_OR_ROUND = re.compile(r'"(?:[^"\\]|\\.)*"|[()]')
_QUOTED_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[{}()\[\]]|, ')
_MEMORY_SPACE = re.compile(r"S\((\d+)\)")
_NUMBER = re.compile(r"\d+")
_CYCLES = re.compile(r'"estimated_cycles":"?(\d+)')
_NOT_IN_MEMORY = frozenset({"token", "opaque"})
_WITHOUT_OPERANDS = frozenset({"constant", "parameter", "iota"})
_CALLING = (
    *("calls", "to_apply", "condition", "body", "branch_computations", "true_computation", "false_computation"),
    "called_computations",
)


@dataclass(frozen=True, slots=True)
class Shape:
    """An array's shape, without its layout.

    Attributes:
        element_type: As HLO names it: `bf16`, `f32`, `pred`, ...
        dims: Its sizes; of a bounded dynamic dim the bound.
        memory_space: `MAIN_MEMORY`, `HOST_MEMORY`, or one on the chip.
    """

    element_type: str
    dims: tuple[int, ...]
    memory_space: int = MAIN_MEMORY

    @property
    def elements(self) -> int:
        """How many numbers it has."""
        return prod(self.dims)

    @property
    def bits(self) -> int:
        """The bits of a number; 0 of what is no array in memory, as tokens."""
        if self.element_type in _NOT_IN_MEMORY:
            return 0
        # The first number in a type's name is its width (f8e4m3fn, bf16, c64); a pred takes a byte.
        found = _NUMBER.search(self.element_type)
        return int(found[0]) if found else 8

    @property
    def size_bytes(self) -> int:
        """Its bytes, without what tiles of a layout are padded with."""
        return (self.elements * self.bits + 7) // 8


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction of a computation.

    Attributes:
        name: Unique in its computation.
        opcode: As HLO has it: `fusion`, `all-reduce-start`, ...
        shapes: The arrays of its result; a tuple's are flattened.
        operands: The names of instructions of the same computation.
        literal: What stands in the place of operands otherwise: a constant's value, a parameter's number.
        attributes: What follows, by name, as texts.
        line: Where it stands, from 1.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[str, ...]
    literal: str
    attributes: Mapping[str, str]
    line: int

    @property
    def size_bytes(self) -> int:
        """The bytes of its result."""
        return sum(shape.size_bytes for shape in self.shapes)

    @property
    def calls(self) -> tuple[str, ...]:
        """The computations that it calls, a loop's condition before its body."""
        return tuple(name for key in _CALLING for name in self.called(key))

    @property
    def custom_call_target(self) -> str:
        """What a custom call calls; empty for others."""
        return self.attributes.get("custom_call_target", "").strip('"')

    @property
    def estimated_cycles(self) -> int | None:
        """The cycles that a TPU's compiler expects of it, where it says so."""
        found = _CYCLES.search(self.attributes.get("backend_config", ""))
        return int(found[1]) if found else None

    def called(self, key: str) -> tuple[str, ...]:
        """The computations that one attribute names."""
        return tuple(_NAME.findall(self.attributes.get(key, "")))

    def numbers(self, key: str) -> tuple[int, ...]:
        """The whole numbers of an attribute, in its order; none where it is absent."""
        return tuple(map(int, _NUMBER.findall(self.attributes.get(key, ""))))

    def backend_config(self) -> dict[str, Any]:
        """What the compiler keeps about it; empty where there is nothing.

        Raises:
            HloTextError: it is not JSON.
        """
        text = self.attributes.get("backend_config", "")
        if not text.strip('"'):
            return {}
        try:
            # Older versions have it as a text in quotes.
            found = json.loads(json.loads(text)) if text.startswith('"') else json.loads(text)
        except ValueError:
            raise HloTextError.at(self.line, text, "the backend_config is not JSON") from None
        return found if isinstance(found, dict) else {}


# Without slots, since two of its values are worked out once.
@dataclass(frozen=True)
class Computation:
    """A function of a module.

    Attributes:
        name: Unique in its module.
        instructions: In the order of the schedule.
        root: The name of the one that is the result.
    """

    name: str
    instructions: tuple[Instruction, ...]
    root: str

    @cached_property
    def by_name(self) -> Mapping[str, Instruction]:
        """Its instructions by name."""
        return {each.name: each for each in self.instructions}

    @cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        """Its parameters in their order."""
        found = (each for each in self.instructions if each.opcode == "parameter")
        return tuple(sorted(found, key=lambda each: int(each.literal)))

    def operands_of(self, instruction: Instruction) -> tuple[Instruction, ...]:
        """The instructions that are an instruction's operands."""
        return tuple(self.by_name[name] for name in instruction.operands)


@dataclass(frozen=True, slots=True)
class ScheduledModule:
    """A compiled module.

    Attributes:
        name: As the compiler calls it.
        num_devices: Partitions times replicas.
        computations: By name.
        entry: The name of the one that is run.
    """

    name: str
    num_devices: int
    computations: Mapping[str, Computation]
    entry: str

    def called_by(self, instruction: Instruction) -> tuple[Computation, ...]:
        """The computations that an instruction calls, in order."""
        return tuple(self.computations[name] for name in instruction.calls)


def read_scheduled(text: str) -> ScheduledModule:
    """Read a compiled module.

    Raises:
        HloTextError: the text is none, or is not scheduled, or has a line that cannot be read.
    """
    header, _, _ = text.partition("\n")
    if not header.startswith("HloModule "):
        raise HloTextError.no_module(f"it begins with {header[:SHOWN]!r} and not with HloModule")
    if "is_scheduled=true" not in header:
        raise HloTextError.no_module("its module is not scheduled")
    computations: dict[str, Computation] = {}
    entry, name, start, root = "", "", 0, ""
    found: dict[str, Instruction] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not name:
            if line.endswith("{") and (opened := _COMPUTATION.match(line)):
                name, start, root, found = opened[2], number, "", {}
                entry = name if opened[1] else entry
        elif line.startswith("}"):
            if not found:
                raise HloTextError.at(start, name, "the computation has no instructions")
            computations[name] = Computation(name, tuple(found.values()), root or next(reversed(found)))
            name = ""
        elif line.strip():
            instruction, is_root = _instruction(number, line)
            missing = next((each for each in instruction.operands if each not in found), None)
            if missing is not None:
                raise HloTextError.at(number, line, f"its operand %{missing} does not stand before it")
            found[instruction.name] = instruction
            root = instruction.name if is_root else root
    if name:
        raise HloTextError.at(start, name, "the computation does not end")
    if not entry:
        raise HloTextError.no_module("it has no ENTRY computation")
    for instruction in (each for computation in computations.values() for each in computation.instructions):
        for called in instruction.calls:
            if called not in computations:
                raise HloTextError.at(instruction.line, instruction.name, f"it calls %{called}, which does not exist")
    counts = [re.search(rf"\b{key}=(\d+)", header) for key in ("num_partitions", "replica_count")]
    num_devices = prod(int(count[1]) for count in counts if count)
    return ScheduledModule(header.split()[1].rstrip(","), num_devices, computations, entry)


def _instruction(number: int, line: str) -> tuple[Instruction, bool]:
    opened = _INSTRUCTION.match(line)
    if opened is None:
        raise HloTextError.at(number, line, "it is no instruction: `%name = shape opcode(...)`")
    position = opened.end()
    if line.startswith("(", position):
        end = _closing(line, position)
        shapes = tuple(_shape(each) for each in _ARRAY.finditer(line, position, end))
    else:
        array = _ARRAY.match(line, position)
        if array is None:
            raise HloTextError.at(number, line, "its result has no shape")
        end, shapes = array.end(), (_shape(array),)
    opcode = _OPCODE.match(line, end)
    if opcode is None:
        raise HloTextError.at(number, line, "it has no opcode after its shape")
    close = _closing(line, opcode.end() - 1)
    if close < 0:
        raise HloTextError.at(number, line, "its operands do not end")
    inside = line[opcode.end() : close - 1]
    is_literal = opcode[1] in _WITHOUT_OPERANDS
    operands = () if is_literal else tuple(_NAME.findall(inside))
    attributes = _attributes(line, close)
    literal = inside if is_literal else ""
    return Instruction(opened[2], opcode[1], shapes, operands, literal, attributes, number), bool(opened[1])


def _closing(line: str, position: int) -> int:
    """The position after the bracket that closes the one at `position`; -1 where there is none."""
    depth = 0
    for token in _QUOTED_OR_ROUND.finditer(line, position):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if depth == 0:
            return token.end()
    return -1


def _shape(found: re.Match[str]) -> Shape:
    # A dynamic dim is `<=300`, and a layout's tiles and memory stand behind its colon.
    dims = tuple(map(int, _NUMBER.findall(found[2])))
    space = _MEMORY_SPACE.search(found[3]) if found[3] else None
    return Shape(found[1], dims, int(space[1]) if space else MAIN_MEMORY)


def _attributes(line: str, position: int) -> dict[str, str]:
    """What stands behind the operands: `, name=value` each, values with brackets and texts in them."""
    parts, depth, start = list[str](), 0, position
    for token in _QUOTED_OR_BRACKET.finditer(line, position):
        if token[0] == ", ":
            if depth == 0:
                parts.append(line[start : token.start()])
                start = token.end()
        elif token[0] in "{([":
            depth += 1
        elif token[0] in "})]":
            depth -= 1
    parts.append(line[start:])
    pairs = (part.partition("=") for part in parts if part)
    return {key: value for key, _, value in pairs}
