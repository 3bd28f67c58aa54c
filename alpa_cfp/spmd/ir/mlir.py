"""The one place where jaxlib's MLIR Python bindings are touched directly.

Takes and gives StableHLO modules as bytecode, text or `ir.Module`. Everything else in this package works on the `ir`
objects that come from here. Tested with jaxlib 0.10.2, 0.11.2 and 0.12.0.1.
"""

import io
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from jax._src.interpreters import mlir as _jax_mlir
from jaxlib.mlir import ir, passmanager
from jaxlib.mlir.dialects import func

MESH_SYMBOL = "mesh"
_CALLED = "called_computations"
# Targets of the custom calls that call Python functions, on CPUs, GPUs and others, per device or once.
_HOST_CALLBACK = re.compile(r"python_\w*callback")

# jaxlib ships no complete type stubs for its MLIR bindings, so operations and values are `Any` to the type checker.
Operation: TypeAlias = Any
Value: TypeAlias = Any


_ADVANCE, _SKIP = ir.WalkResult.ADVANCE, ir.WalkResult.SKIP
_Block, _RankedTensorType = ir.Block, ir.RankedTensorType

# A context takes some 3 ms to make, as long as a pass over a small program; but it keeps every attribute it has met.
_USES_OF_CONTEXT = 64
_cache = threading.local()


def context() -> Any:
    """An MLIR context of this thread with the dialects that JAX programs use, StableHLO and Shardy among them."""
    uses = getattr(_cache, "uses", _USES_OF_CONTEXT)
    if uses >= _USES_OF_CONTEXT:
        _cache.context, uses = _jax_mlir.make_ir_context(), 0
        _cache.known = {}
    _cache.uses = uses + 1
    return _cache.context


def known_here(kind: Any) -> dict[Any, Any]:
    """A dict of one's own for the time of the current context: for what depends on attributes and types alone.

    Args:
        kind: Whose it is.
    """
    if ir.Context.current is not getattr(_cache, "context", None):
        return {}
    return _cache.known.setdefault(kind, {})


def attribute(text: str) -> Any:
    """The attribute of a text, which is parsed once in a context."""
    known = known_here(attribute)
    if (found := known.get(text)) is None:
        found = known[text] = ir.Attribute.parse(text)
    return found


def parse(module: bytes | str) -> Any:
    """The `ir.Module` of bytecode or text, in the context that is current.

    What `edit` has written last is not parsed again: the module that was written is handed out, once.
    """
    written = getattr(_cache, "written", None)
    if written is not None and written[0] is module and written[1].context is ir.Context.current:
        _cache.written = None
        return written[1]
    return ir.Module.parse(module)


def to_bytecode(module: Any) -> bytes:
    """MLIR bytecode of `module`, as this jaxlib writes it (not a format that other versions must read)."""
    buffer = io.BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def to_text(module: Any) -> str:
    """The module as text, without locations."""
    return str(module)


def run_passes(module: Any, pipeline: str, *, verifies_result: bool = True) -> None:
    """Run a pass pipeline (as text, without the enclosing `builtin.module(...)`) on `module` in place.

    The module is verified before and after, and not between the passes, where it takes longer than Shardy's do.

    Args:
        module: The module.
        pipeline: The passes.
        verifies_result: Whether to verify it after passes, too.

    Raises:
        ir.MLIRError: a pass failed, or the module is not valid.
    """
    passes = passmanager.PassManager.parse(f"builtin.module({pipeline})")
    passes.enable_verifier(False)
    module.operation.verify()
    passes.run(module.operation)
    if verifies_result:
        module.operation.verify()


def functions(module: Any) -> dict[str, Operation]:
    """The functions of `module` by name."""
    return {
        ir.StringAttr(op.attributes["sym_name"]).value: op
        for op in block_operations(module.body)
        if op.name == "func.func"
    }


def main_function(module: Any) -> Operation:
    """The `func.func @main` operation of `module`."""
    for op in module.body.operations:
        if isinstance(op, func.FuncOp) and op.name.value == "main":
            return op.operation
    raise KeyError("main")


def entry_block(function: Operation) -> Any:
    """The one block of a function."""
    return function.regions[0].blocks[0]


def block_operations(block: Any) -> list[Operation]:
    """The operations of one block, as generic operations, in a list that stays valid while the block is edited."""
    owner = block.owner.operation
    if owner.name != "func.func":
        return [op.operation for op in block.operations]
    # The walk makes no views of the operations, which takes twice as long.
    found: list[Operation] = []

    def take(op: Operation) -> Any:
        found.append(op)
        return _ADVANCE if len(found) == 1 else _SKIP

    owner.walk(take, ir.WalkOrder.PRE_ORDER)
    return found[1:]


def walk(block: Any) -> Iterator[Operation]:
    """Every operation below `block`, inner ones after the operation that holds them."""
    for op in block_operations(block):
        yield op
        yield from inner_operations(op)


def all_operations(module: Any) -> list[Operation]:
    """Every operation in the functions of `module`, in a list that stays valid while they are edited."""
    return [op for function in functions(module).values() for op in inner_operations(function)]


def inner_operations(op: Operation) -> list[Operation]:
    """The operations in the regions of `op`, at any depth, inner ones after the operation that holds them."""
    if not len(op.regions):
        return []
    found: list[Operation] = []

    def take(inner: Operation) -> Any:
        found.append(inner)
        return _ADVANCE

    op.walk(take, ir.WalkOrder.PRE_ORDER)
    return found[1:]


def terminator(function: Operation) -> Operation:
    """The `func.return` of a function."""
    last: Any = ir.InsertionPoint.at_block_terminator(entry_block(function)).ref_operation
    return last.operation


def defining_op(value: Value) -> Operation | None:
    """The operation whose result `value` is, or None for a block argument."""
    owner = value.owner
    return None if type(owner) is _Block else owner.operation


def operands_deep(op: Operation) -> list[Value]:
    """The operands of `op` and of all operations inside its regions."""
    if not len(op.regions):
        return list(op.operands)
    return [value for each in (op, *inner_operations(op)) for value in each.operands]


def users(value: Value) -> list[Operation]:
    """The operations that use `value`, once for each use."""
    return [use.owner.operation for use in value.uses]


def tensor_type(value: Value) -> Any:
    """The `ir.RankedTensorType` of `value`."""
    found = value.type
    return found if type(found) is _RankedTensorType else _RankedTensorType(found)


def tensor_shape(value: Value) -> tuple[int, ...]:
    """The shape of a tensor value."""
    return tuple(tensor_type(value).shape)


def attributes_of(op: Operation) -> dict[str, Any]:
    """The attributes of `op` by name."""
    return {name: op.attributes[name] for name in op.attributes}


def int_array(op: Operation, name: str) -> list[int]:
    """A `DenseI64ArrayAttr` attribute of `op` as a list of integers."""
    known = known_here(int_array)
    value = op.attributes[name]
    if (found := known.get(value)) is None:
        found = known[value] = tuple(ir.DenseI64ArrayAttr(value))
    return list(found)


def integer(op: Operation, name: str) -> int:
    """An `IntegerAttr` attribute of `op` as an integer."""
    return ir.IntegerAttr(op.attributes[name]).value


def set_int_array(op: Operation, name: str, values: list[int]) -> None:
    """Set a `DenseI64ArrayAttr` attribute of `op`."""
    op.attributes[name] = ir.DenseI64ArrayAttr.get(values)


def dense(array: np.ndarray) -> Any:
    """A `DenseElementsAttr` of an array."""
    return ir.DenseElementsAttr.get(array)  # pyright: ignore[reportCallIssue, reportArgumentType]


def create(
    name: str,
    results: list[Any],
    operands: Sequence[Value],
    attributes: dict[str, Any] | None = None,
    *,
    reducer: str | None = None,
) -> Operation:
    """Create the operation `name` at the current insertion point.

    Args:
        name: Its full name.
        results: The types of its results.
        operands: Its operands.
        attributes: Its attributes.
        reducer: The StableHLO op in its region, where it has one that combines two scalars, such as "add".
    """
    regions = int(reducer is not None)
    op = ir.Operation.create(name, results=results, operands=operands, attributes=attributes or {}, regions=regions)
    if reducer is not None:
        scalar = ir.RankedTensorType.get([], ir.RankedTensorType(results[0]).element_type)
        block = ir.Block.create_at_start(op.regions[0], [scalar, scalar], [op.location, op.location])
        with ir.InsertionPoint(block), op.location:
            combined = create(f"stablehlo.{reducer}", [scalar], list(block.arguments)).results[0]
            create("stablehlo.return", [], [combined])
    return op


def replace(op: Operation, value: Value) -> None:
    """Let `value` stand for the one result of `op`, and erase `op`."""
    op.results[0].replace_all_uses_with(value)
    op.erase()


def i64(number: int) -> Any:
    """An attribute of 64 bits."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)


def i32(number: int) -> Any:
    """An attribute of 32 bits."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), number)


def add_main(module: Any, inputs: list[Any], results: list[Any]) -> tuple[Operation, Any]:
    """Add a `func.func @main` of the given types, without a body, to `module`; returns it and its empty block."""
    with ir.InsertionPoint(module.body):
        function = func.FuncOp("main", (inputs, results), visibility="public")
    return function.operation, function.add_entry_block()


def function_arguments_attributes(function: Operation, kind: str) -> list[dict[str, Any]]:
    """The attribute dictionaries of the arguments (`kind="arg_attrs"`) or results (`"res_attrs"`) of a function."""
    if kind not in function.attributes:
        function_type = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
        return [{} for _ in (function_type.inputs if kind == "arg_attrs" else function_type.results)]
    known = known_here(function_arguments_attributes)
    found = []
    for attribute in ir.ArrayAttr(function.attributes[kind]):
        if (items := known.get(attribute)) is None:
            dictionary = ir.DictAttr(attribute)
            items = {dictionary[i].name: dictionary[i].attr for i in range(len(dictionary))}
            known[attribute] = items
        found.append(dict(items))
    return found


def set_function_arguments_attributes(function: Operation, kind: str, attributes: list[dict[str, Any]]) -> None:
    """Set the attributes that `function_arguments_attributes` reads."""
    function.attributes[kind] = ir.ArrayAttr.get([ir.DictAttr.get(attr) for attr in attributes])


def update_function_type(function: Operation) -> None:
    """Let the type of a function be that of its arguments and of what it returns."""
    inputs = [argument.type for argument in entry_block(function).arguments]
    results = [value.type for value in terminator(function).operands]
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, results))


def clone_into(op: Operation, mapping: dict[Value, Value]) -> Operation:
    """Clone `op` at the current insertion point with its operands, those of inner operations too, taken from `mapping`.

    The results of the clone are added to `mapping`. A function that a custom call names, as one that compares, comes
    along into another module.
    """
    clone = op.clone(ir.InsertionPoint.current).operation
    if _CALLED in op.attributes:
        _copy_called(op, clone)
    for each in (clone, *inner_operations(clone)):
        for i, operand in enumerate(each.operands):
            if operand in mapping:
                each.operands[i] = mapping[operand]
    mapping.update(zip(op.results, clone.results, strict=True))
    return clone


def called(op: Operation) -> list[str]:
    """The names of the functions that the compiler calls for a custom call."""
    if _CALLED not in op.attributes:
        return []
    return [ir.FlatSymbolRefAttr(each).value for each in ir.ArrayAttr(op.attributes[_CALLED])]


def _copy_called(op: Operation, clone: Operation) -> None:
    source, target = (functions(_module_of(each)) for each in (op, clone))
    for name in called(op):
        if name not in target:
            source[name].clone(ir.InsertionPoint(_module_of(clone).body))


def _module_of(op: Operation) -> Any:
    while op.parent is not None:
        op = op.parent
    return op.opview


def edit(bytecode: bytes, change: Callable[[Any], Any]) -> tuple[bytes, Any]:
    """Parse `bytecode`, call `change(module)`, and return the new bytecode and the result of `change`.

    The result must hold no `ir` object, since those die with the module.
    """
    with context(), ir.Location.unknown():
        module = parse(bytecode)
        result = change(module)
        written = to_bytecode(module)
        _cache.written = written, module
        return written, result


def host_callbacks(module: Any) -> list[str]:
    """The JAX primitives in `module` that call back into Python ("pure_callback", "debug_print"), each once."""
    names = {}
    for op in all_operations(module):
        if op.name == "stablehlo.custom_call" and _HOST_CALLBACK.search(call_target(op)):
            # The location that JAX gives an op ends in the primitive's name: "jit(f)/while/body/pure_callback".
            name = re.search(r"/(\w+)\"", str(op.location))
            names[call_target(op) if name is None else name[1]] = None
    return list(names)


def call_target(op: Operation) -> str:
    """The target of a `stablehlo.custom_call`."""
    return ir.StringAttr(op.attributes["call_target_name"]).value


def location_name(of: Any) -> str:
    """The name in the location of an operation or an argument, as JAX gives it: "jit(step)/layer/dot_general",
    "params['w']"; "" where it has none.
    """
    location = of.location
    while not isinstance(location, ir.NameLoc):
        if isinstance(location, ir.CallSiteLoc):
            location = location.callee
        elif isinstance(location, ir.FusedLoc) and location.locations:
            location = location.locations[0]
        else:
            return ""
    return location.name_str


def replica_groups(op: Operation) -> list[list[int]] | None:
    """The devices that a collective brings together, group by group; None where it has no such groups."""
    if "replica_groups" not in op.attributes:
        return None
    return np.array(ir.DenseElementsAttr(op.attributes["replica_groups"])).tolist()
