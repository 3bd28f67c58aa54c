"""Along which dims a loop can be split: those that each iteration hands on, or sums over, and does nothing else along.

Takes a `stablehlo.while` whose inner ops have Shardy's rules; gives the classes of dims that are split together, of the
loop's values and of all values in it, and the loop's own sharding rule. What JAX draws random numbers with is such a
loop on CPUs (Threefry's rounds): each device can make its part of them. Invariant: a device that has its parts of the
operands along a class that `is_split_freely` computes its parts of the results, and communicates only to finish sums
over that class (those of an iteration, or those that `sums_after_loops` moves behind the loop), and to gather what it
carries on in another class than the next iteration takes it (the state of a recurrence).
"""

from collections.abc import Iterable, Iterator
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.mlir import Operation, Value
from alpa_cfp.spmd.ir.op_kinds import CONTRACTIONS, WORKED_DIMS
from alpa_cfp.spmd.shardings.annotations import RULE

WHILE = "stablehlo.while"
# Each device makes its own part of these.
_MADE_IN_PARTS = frozenset({"stablehlo.constant", "stablehlo.iota", "sdy.constant"})
_ENDS = frozenset({"stablehlo.return"})
# Numbers of their own in each iteration, which `random_ops` does not number.
_DRAWS = "stablehlo.rng"

# What these reduce may be split: the devices' results are reduced then.
REDUCED = CONTRACTIONS | {"stablehlo.reduce"}

Dim = tuple[Value, int]


class LoopDims:
    """The dims of a loop and of what is in it, in classes.

    Attributes:
        operations: The ops in it, those of its condition first, inner loops and what is in them included.
    """

    def __init__(self, loop: Operation):
        self._loop = loop
        self.operations = tuple(_inner(loop))
        # Devices that disagree about the end of a loop would wait for each other.
        self._deciding = {
            op for each in (loop, *self.operations) for block in _blocks(each)[:1] for op in mlir.walk(block)
        }
        self._known = set(loop.results)
        for op in (loop, *self.operations):
            self._known.update(op.results)
            self._known.update(argument for block in _blocks(op) for argument in block.arguments)
        self._cut: frozenset[int] = frozenset()
        self._tie_all()
        if cut := self._on_diagonals():
            # The state of a recurrence is a product of itself: it may be split where it is computed, and gathered for
            # the next iteration.
            self._cut = cut
            self._tie_all()
        self._keep_diagonals_whole()

    def _tie_all(self) -> None:
        self._parents: dict[Dim, Dim] = {}
        self._worked_along: set[Dim] = set()
        self._tie_loop(self._loop)
        for op in self.operations:
            self._visit(op)

    def _on_diagonals(self) -> frozenset[int]:
        """The carried arrays with a dim that is of one class with another dim of some array."""
        diagonal = {each for classes in self._classes() for each in classes if classes.count(each) > 1}
        return frozenset(
            position
            for position, value in enumerate(self._loop.results)
            if any(self.class_of(value, dim) in diagonal for dim in range(len(shape_of(value))))
        )

    def _classes(self) -> Iterator[list[Dim]]:
        for value in self._known:
            yield [self.class_of(value, dim) for dim in range(len(shape_of(value)))]

    def class_of(self, value: Value, dim: int) -> Dim:
        """One dim that stands for all which are split as this one is."""
        found = value, dim
        while found in self._parents:
            found = self._parents[found]
        return found

    def is_split_freely(self, value: Value, dim: int) -> bool:
        """Whether no iteration works along this dim, but for sums."""
        return self.class_of(value, dim) not in self._worked_along

    def rule(self) -> Any:
        """The loop's sharding rule, as Shardy's attribute."""
        numbers: dict[Any, int] = {}
        sizes: list[int] = []
        whole: list[int] = []

        def mapping(position: int, value: Value) -> Any:
            dims = []
            for dim, size in enumerate(shape_of(value)):
                is_free = self.is_split_freely(value, dim)
                key = self.class_of(value, dim) if is_free else (position, dim)
                if key not in numbers:
                    numbers[key] = len(sizes)
                    sizes.append(size)
                    if not is_free:
                        whole.append(numbers[key])
                dims.append(sdy.DimMappingAttr.get([numbers[key]]))
            return sdy.TensorMappingAttr.get(dims)

        # Each operand is split as its result. Several operands may be one array, such as zeros.
        operands, results = ([mapping(*each) for each in enumerate(self._loop.results)] for _ in range(2))
        return sdy.OpShardingRuleAttr.get(sizes, operands, results, need_replication_factors=whole)

    def _tie_loop(self, loop: Operation) -> None:
        condition, body = _blocks(loop)
        carried = mlir.block_operations(body)[-1].operands
        arrays = zip(loop.results, condition.arguments, body.arguments, carried, loop.operands, strict=True)
        for position, (*values, after, before) in enumerate(arrays):
            if loop != self._loop:
                values += [after, before]
            elif position not in self._cut:
                values.append(after)
            for dim in range(len(shape_of(after))):
                self._tie((value, dim) for value in values)

    def _visit(self, op: Operation) -> None:
        if op.name == WHILE:
            self._tie_loop(op)
        elif RULE in op.attributes and op.name != _DRAWS:
            self._tie_by_rule(op)
        elif op.name not in _MADE_IN_PARTS | _ENDS:
            for value in (*op.operands, *op.results):
                self._keep_whole(value)
        for value in op.operands:
            if value not in self._known:
                # From outside of the loop, whose rule does not speak of it.
                self._keep_whole(value)

    def _tie_by_rule(self, op: Operation) -> None:
        values, sums = [*op.operands, *op.results], op.name in REDUCED and op not in self._deciding
        for places, is_special, is_reduced in _factors_of(op.attributes[RULE]):
            root = self._tie((values[position], dim) for position, dim in places)
            if is_special or (is_reduced and not sums):
                self._worked_along.add(root)
        if op.name in WORKED_DIMS:
            rank = max(len(shape_of(value)) for value in op.operands)
            for value in (*op.operands, *op.results):
                if len(shape_of(value)) == rank:
                    self._worked_along.update(self.class_of(value, dim) for dim in WORKED_DIMS[op.name](op))

    def _keep_diagonals_whole(self) -> None:
        """No axis can split two dims of one array."""
        for classes in self._classes():
            self._worked_along.update(each for each in classes if classes.count(each) > 1)

    def _keep_whole(self, value: Value) -> None:
        self._worked_along.update(self.class_of(value, dim) for dim in range(len(shape_of(value))))

    def _tie(self, dims: Iterable[Dim]) -> Dim:
        """Put dims into one class, and give what stands for it."""
        first, *others = dict.fromkeys(self.class_of(*dim) for dim in dims)
        for other in others:
            self._parents[other] = first
            if other in self._worked_along:
                self._worked_along.add(first)
        return first


def _factors_of(attribute: Any) -> list[tuple[list[tuple[int, int]], bool, bool]]:
    """The factors of a rule: the dims of each, with the position of the array among operands and results; whether an op
    works along it in another way than to sum; whether it sums.
    """
    known = mlir.known_here(_factors_of)
    if (found := known.get(attribute)) is not None:
        return found
    rule = sdy.OpShardingRuleAttr(attribute)
    sizes, reduced = rule.factor_sizes, set(rule.reduction_factors)
    special = {*rule.need_replication_factors, *rule.permutation_factors, *rule.blocked_propagation_factors}
    places: dict[int, list[tuple[int, int]]] = {}
    for position, tensor in enumerate([*rule.operand_mappings, *rule.result_mappings]):
        for dim, each in enumerate(sdy.TensorMappingAttr(tensor).dim_mappings):
            factors = [factor for factor in sdy.DimMappingAttr(each).factor_indices if sizes[factor] > 1]
            for factor in factors:
                places.setdefault(factor, []).append((position, dim))
            if len(factors) > 1:
                special.update(factors)
    known[attribute] = [(dims, factor in special, factor in reduced) for factor, dims in places.items()]
    return known[attribute]


def loops_of(block: Any) -> list[Operation]:
    """The loops of a block that are in no other loop."""
    return [op for op in mlir.block_operations(block) if op.name == WHILE]


def shape_of(value: Value) -> tuple[int, ...]:
    """The shape of an array; () of what is none."""
    return tuple(mlir.tensor_shape(value)) if isinstance(value.type, ir.RankedTensorType) else ()


def _inner(loop: Operation) -> Iterator[Operation]:
    for block in _blocks(loop):
        for op in mlir.block_operations(block):
            yield op
            if op.name == WHILE:
                yield from _inner(op)


def _blocks(op: Operation) -> list[Any]:
    return [block for region in op.regions for block in region.blocks] if op.name == WHILE else []
