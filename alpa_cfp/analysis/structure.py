"""Value numbering of a program: values that are equal, and values that differ in layout only.

Takes a `Graph`; gives a class for each value (equal classes: same op, same attributes, operands of equal classes) and
its *origin* (the class of the value before transposes, conversions, barriers and reshapes that add or drop dims of size
1). Rematerialised values have the class of their original, since barriers are ignored here. One pass.
"""

from dataclasses import dataclass

from alpa_cfp.analysis.graph import BARRIER, LAYOUT_OPS, Graph, Op
from alpa_cfp.analysis.rules import Rule


@dataclass(frozen=True, slots=True)
class Structure:
    """Equivalence classes of the values and ops of a graph.

    Attributes:
        class_of: For each value id its class: the id of the first value of that class.
        origin: For each value id the class of its origin.
        origin_dims: For each value id, for each of its dims the dim of the origin that it is; None for an added dim of
            size 1.
        original: For each op the first equal op; its own index if it is the first.
    """

    class_of: tuple[int, ...]
    origin: tuple[int, ...]
    origin_dims: tuple[tuple[int | None, ...], ...]
    original: tuple[int, ...]


def find_structure(graph: Graph) -> Structure:
    """Returns the value numbering of `graph`."""
    class_of = [0] * len(graph.values)
    origin = [0] * len(graph.values)
    dims: list[tuple[int | None, ...]] = [()] * len(graph.values)
    original: list[int] = []
    first_of: dict[tuple[object, ...], int] = {}
    constants = {digest: value for value, digest in reversed(graph.constants)}
    digest_of = dict(graph.constants)
    for value in graph.parameters:
        class_of[value] = origin[value] = constants[digest_of[value]] if value in digest_of else value
        dims[value] = tuple(range(len(graph.shape(value))))
    digests = constant_digests(graph) if constants else {}
    for op in graph.ops:
        if op.name == BARRIER:
            original.append(op.index)
            for operand, result in zip(op.operands, op.results, strict=True):
                class_of[result], origin[result], dims[result] = class_of[operand], origin[operand], dims[operand]
            continue
        key = (op.name, op.attributes, tuple(class_of[v] for v in op.operands), _result_types(graph, op))
        first = first_of.setdefault(key, op.index)
        original.append(first)
        same = _is_identity(graph, op)
        for result, its_first in zip(op.results, graph.ops[first].results, strict=True):
            class_of[result] = class_of[op.operands[0]] if same else constants.get(digests.get(result, 0), its_first)
            if op.name in LAYOUT_OPS and op.rule is not None and _keeps_dims(op.rule):
                (operand,) = op.operands
                origin[result], dims[result] = origin[operand], _dims_through(op.rule, dims[operand])
            else:
                origin[result], dims[result] = class_of[result], tuple(range(len(graph.shape(result))))
    return Structure(tuple(class_of), tuple(origin), tuple(dims), tuple(original))


def constant_digests(graph: Graph) -> dict[int, int]:
    """Returns for each constant-derived value a hash of its derivation, comparable between graphs."""
    digests = dict(graph.constants)
    for op in graph.ops:
        if graph.constant_derived[op.index] and all(operand in digests for operand in op.operands):
            derivation = (op.name, op.attributes, tuple(digests[v] for v in op.operands), _result_types(graph, op))
            digests.update({result: hash((derivation, i)) for i, result in enumerate(op.results)})
    return digests


def is_parameter(graph: Graph, structure: Structure, value: int) -> bool:
    """Whether the origin of a value is a parameter, or a loop's slice of one."""
    op = graph.producer(structure.origin[value])
    if op is not None and op.name == "stablehlo.dynamic_slice":
        return is_parameter(graph, structure, op.operands[0])
    return op is None


def _result_types(graph: Graph, op: Op) -> tuple[tuple[tuple[int, ...], str], ...]:
    return tuple((graph.values[value].shape, graph.values[value].dtype) for value in op.results)


def _is_identity(graph: Graph, op: Op) -> bool:
    """Whether an op is a conversion to the operand's own type, or a reshape to its own shape."""
    if op.name not in ("stablehlo.convert", "stablehlo.reshape"):
        return False
    operand, result = graph.values[op.operands[0]], graph.values[op.results[0]]
    return operand.shape == result.shape and operand.dtype == result.dtype


def _keeps_dims(rule: Rule) -> bool:
    """Whether a layout op maps dims to dims: false for reshapes that split or merge dims."""
    return all(
        sum(rule.sizes[factor] > 1 for factor in factors) <= 1
        for tensor in (*rule.operands, *rule.results)
        for factors in tensor
    )


def _dims_through(rule: Rule, dims: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """The origin's dims of a layout op's result, given those of its operand."""
    of_factor = {
        factor: dim
        for dim, factors in zip(dims, rule.operands[0], strict=True)
        if (factor := rule.major_factor(factors)) is not None
    }
    majors = (rule.major_factor(factors) for factors in rule.results[0])
    return tuple(None if factor is None else of_factor.get(factor) for factor in majors)
