"""The bytes that an instruction moves between a chip and its memories.

Takes an instruction of a scheduled program; gives the bytes that it reads and writes, by memory. Invariant: what it
only passes on, or takes no part of, is not counted.
"""

from alpa_cfp.targets.hlo_text import MAIN_MEMORY, Computation, Instruction, ScheduledModule

_RENAMING = frozenset({"bitcast", "reshape"})
_SLICING = frozenset({"slice", "dynamic-slice", "gather"})
_WRITING_IN_PLACE = {"dynamic-update-slice": 1, "scatter": 2}


def moved_bytes(module: ScheduledModule, computation: Computation, instruction: Instruction) -> dict[int, int]:
    """The bytes that an instruction reads and writes, by the memory that they are in.

    Of what it slices or gathers it reads what it takes, and of what it updates in place it writes what is new.
    """
    moved = {MAIN_MEMORY: 0}
    if instruction.opcode == "fusion":
        (called,) = module.called_by(instruction)
        reads = _reads(module, called)
        results = _results(called)
    else:
        reads = [
            _read_by(module, computation, instruction, position, operand.size_bytes)
            for position, operand in enumerate(computation.operands_of(instruction))
        ]
        results = [_written(computation, instruction)] if len(instruction.shapes) == 1 else []
    seen: dict[str, int] = {}
    for operand, read in zip(computation.operands_of(instruction), reads, strict=False):
        # What stands among the operands twice is read once.
        further = max(0, read - seen.get(operand.name, 0))
        seen[operand.name] = seen.get(operand.name, 0) + further
        space = operand.shapes[0].memory_space if operand.shapes else MAIN_MEMORY
        moved[space] = moved.get(space, 0) + further
    shapes = instruction.shapes
    if instruction.custom_call_target.startswith(("__cublas", "__cudnn")):
        # The last one is room for the kernel to work in.
        shapes = shapes[: max(1, len(shapes) - 1)]
    written = results if len(results) == len(shapes) else [shape.size_bytes for shape in shapes]
    for shape, size_bytes in zip(shapes, written, strict=True):
        moved[shape.memory_space] = moved.get(shape.memory_space, 0) + size_bytes
    return moved


def _reads(module: ScheduledModule, called: Computation) -> list[int]:
    """The bytes that a fusion reads of each of its parameters."""
    users: dict[str, list[tuple[Instruction, int]]] = {}
    for each in called.instructions:
        for position, name in enumerate(each.operands):
            users.setdefault(name, []).append((each, position))

    def read(name: str, size_bytes: int) -> int:
        found = 0
        for user, position in users.get(name, ()):
            if user.opcode in _RENAMING:
                found += read(user.name, size_bytes)
            elif not (user.opcode == "tuple" and user.name == called.root):
                found += _read_by(module, called, user, position, size_bytes)
        return min(found, size_bytes)

    return [read(each.name, each.size_bytes) for each in called.parameters]


def _read_by(
    module: ScheduledModule, computation: Computation, user: Instruction, position: int, size_bytes: int
) -> int:
    """The bytes that an instruction reads of the operand at `position`."""
    if position == 0 and user.opcode in _SLICING:
        return min(size_bytes, user.size_bytes)
    if position == 0 and user.opcode in _WRITING_IN_PLACE:
        # What is added to is read; what is overwritten is not.
        return _written(computation, user) if user.opcode == "scatter" else 0
    if user.opcode == "fusion":
        (called,) = module.called_by(user)
        return _reads(module, called)[position]
    return size_bytes


def _results(called: Computation) -> list[int]:
    """The bytes that a fusion writes of each of its results; what it only passes on is there already."""
    root = called.by_name[called.root]
    written = list[int]()
    for part in called.operands_of(root) if root.opcode == "tuple" else (root,):
        found = part
        while found.opcode in _RENAMING:
            found = called.by_name[found.operands[0]]
        written.append(0 if found.opcode == "parameter" else _written(called, found))
    return written


def _written(computation: Computation, instruction: Instruction) -> int:
    place = _WRITING_IN_PLACE.get(instruction.opcode)
    # A scatter of several arrays is rare enough to count it as a whole.
    if place is None or len(instruction.operands) <= place or len(instruction.shapes) > 1:
        return instruction.size_bytes
    return computation.by_name[instruction.operands[place]].size_bytes
