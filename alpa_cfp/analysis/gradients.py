"""Gradient groups: each forward contraction with its gradients, rematerialised ones included.

Takes a graph's contractions; gives for each forward contraction F its `GradientGroup`: F, its gradients and what is
rematerialised of both, with a map from F's factors to those of each member. Names are not used. F(a, b), dA(c, b) and
dB(a, c) are the three derivatives of one trilinear form, so any two of them share an operand, and a factor that one of
them contracts is in the results of the others. Invariant: every contraction is in one group, and the first of a group
in program order is its F.
"""

from dataclasses import dataclass

from alpa_cfp.analysis.contractions import Contraction, Side
from alpa_cfp.analysis.graph import Graph
from alpa_cfp.analysis.structure import Structure, is_parameter

MAJOR_SHARE = 0.01
"""A group is major if the iteration volume of its largest member is at least this share of the largest of all."""


@dataclass(frozen=True, slots=True)
class Member:
    """A contraction of a gradient group.

    Attributes:
        op: Its op.
        role: "forward", "gradient" or "rematerialised".
        factors: For each factor of the group's forward contraction the member's own.
    """

    op: int
    role: str
    factors: dict[int, int]


@dataclass(frozen=True, slots=True)
class GradientGroup:
    """A forward contraction with the contractions that share its iteration space.

    Attributes:
        forward: The forward contraction.
        members: All contractions, `forward` first, in program order.
    """

    forward: Contraction
    members: tuple[Member, ...]


def find_gradient_groups(
    graph: Graph, structure: Structure, contractions: tuple[Contraction, ...]
) -> tuple[GradientGroup, ...]:
    """Returns the major groups and the embedding lookups, in program order of their forward contractions."""
    search = _Search(graph, structure, contractions)
    search.match_triples()
    search.match_pairs()
    search.match_lookups()
    groups = search.groups()
    volumes = {each.op: each.volume for each in contractions}
    lookups = {each.op for each in contractions if graph.ops[each.op].name == "stablehlo.gather"}
    largest = [max(volumes.get(member.op, 0) for member in group.members) for group in groups]
    threshold = MAJOR_SHARE * max(
        (volume for volume, group in zip(largest, groups, strict=True) if group.forward.op not in lookups), default=0
    )
    return tuple(
        group
        for volume, group in zip(largest, groups, strict=True)
        if volume >= threshold or group.forward.op in lookups
    )


class _Search:
    def __init__(self, graph: Graph, structure: Structure, contractions: tuple[Contraction, ...]):
        self.graph, self.structure = graph, structure
        self.all = {each.op: each for each in contractions}
        self.originals = [each for each in contractions if structure.original[each.op] == each.op]
        self.gradients: dict[int, list[Member]] = {each.op: [] for each in self.originals}
        self.gradient_ops: set[int] = set()  # not forward contractions
        self.users: dict[int, list[tuple[Contraction, int]]] = {}
        self.pairs: dict[frozenset[int], list[Contraction]] = {}
        for each in self.originals:
            if graph.ops[each.op].name == "stablehlo.gather":
                continue
            origins = self.origins(each)
            self.pairs.setdefault(frozenset(origins), []).append(each)
            for side, origin in enumerate(origins):
                self.users.setdefault(origin, []).append((each, side))

    def origins(self, contraction: Contraction) -> tuple[int, int]:
        left, right = contraction.operands
        return self.structure.origin[left], self.structure.origin[right]

    def match_triples(self) -> None:
        """Find groups of three: two gradients that share their cotangent, and each an operand with the forward one."""
        for forward in self.originals:
            if forward.op in self.gradient_ops or forward.op not in self.gradients:
                continue
            origins = self.origins(forward)
            for shared in (1, 0):
                if self.match_triple(forward, shared, origins):
                    break

    def match_triple(self, forward: Contraction, shared: int, origins: tuple[int, int]) -> bool:
        for first, side in self.users.get(origins[shared], ()):
            if first.op <= forward.op or first.op in self.gradient_ops:
                continue
            cotangent = self.origins(first)[1 - side]
            for second in self.pairs.get(frozenset((origins[1 - shared], cotangent)), ()):
                if second.op <= forward.op or second.op in self.gradient_ops or second is first:
                    continue
                maps = self.correspond(forward, shared, first, side), self.correspond_any(forward, 1 - shared, second)
                if maps[0] is not None and maps[1] is not None:
                    self.add_gradient(forward, first, maps[0])
                    self.add_gradient(forward, second, maps[1])
                    return True
        return False

    def match_pairs(self) -> None:
        """Find groups of two, where one gradient is not needed or the forward contraction is in another graph.

        A pair may be a coincidence (a tied weight in two forward contractions). So the gradient must come after the
        last forward contraction of a triple; without triples, the operand that is not shared must be a parameter.
        """
        forward_end = max((op for op, members in self.gradients.items() if members), default=None)
        for forward in self.originals:
            if forward.op in self.gradient_ops or self.gradients[forward.op]:
                continue
            for shared, origin in enumerate(self.origins(forward)):
                if forward_end is None and not is_parameter(self.graph, self.structure, forward.operands[1 - shared]):
                    continue
                for other, side in self.users.get(origin, ()):
                    if other.op <= max(forward.op, forward_end or 0) or other.op in self.gradient_ops:
                        continue
                    if self.gradients[other.op]:
                        continue
                    factors = self.correspond(forward, shared, other, side)
                    if factors is not None:
                        self.add_gradient(forward, other, factors)
                        break

    def match_lookups(self) -> None:
        """Find gradients of gathers: the scatters by the same indices into arrays of the table's shape."""
        scatters: dict[tuple[int, tuple[int, ...]], int] = {}
        for op in self.graph.ops:
            if op.name == "stablehlo.scatter" and len(op.operands) == 3:
                scatters.setdefault((self.structure.origin[op.operands[1]], self.graph.shape(op.results[0])), op.index)
        for forward in self.originals:
            if self.graph.ops[forward.op].name != "stablehlo.gather":
                continue
            table, indices = forward.operands
            found = scatters.pop((self.structure.origin[indices], self.graph.shape(table)), None)
            if found is None or found <= forward.op or (rule := self.graph.ops[found].rule) is None:
                continue
            factors: dict[int, int] = {}
            for mine, its in zip(forward.dims[:2], (rule.results[0], rule.operands[1]), strict=True):
                for factor, its_factors in zip(mine, its, strict=True):
                    if factor is not None and (major := rule.major_factor(its_factors)) is not None:
                        factors[factor] = major
            self.gradients[forward.op].append(Member(found, "gradient", factors))
            self.gradient_ops.add(found)

    def groups(self) -> tuple[GradientGroup, ...]:
        rematerialised: dict[int, list[int]] = {}
        for op in self.all:
            if (original := self.structure.original[op]) != op:
                rematerialised.setdefault(original, []).append(op)
        result: list[GradientGroup] = []
        for forward in self.originals:
            if forward.op in self.gradient_ops:
                continue
            own = Member(forward.op, "forward", {factor: factor for factor in forward.sides})
            members = [own, *self.gradients[forward.op]]
            members += [
                Member(op, "rematerialised", each.factors)
                for each in tuple(members)
                for op in rematerialised.get(each.op, ())
            ]
            result.append(GradientGroup(forward, tuple(sorted(members, key=lambda member: member.op))))
        return tuple(result)

    def add_gradient(self, forward: Contraction, gradient: Contraction, factors: dict[int, int]) -> None:
        self.gradients[forward.op].append(Member(gradient.op, "gradient", factors))
        self.gradient_ops.add(gradient.op)

    def correspond_any(self, forward: Contraction, shared: int, other: Contraction) -> dict[int, int] | None:
        """Returns `correspond` for the operand of `other` that is the shared one."""
        origin = self.origins(forward)[shared]
        for side, candidate in enumerate(self.origins(other)):
            if candidate == origin and (factors := self.correspond(forward, shared, other, side)) is not None:
                return factors
        return None

    def correspond(self, forward: Contraction, shared: int, other: Contraction, side: int) -> dict[int, int] | None:
        """Maps factors of `forward` to those of `other` if `other` may be its gradient by the operand not shared.

        Args:
            forward: A contraction.
            shared: The operand of it, 0 or 1, that `other` has too.
            other: The contraction that may be its gradient.
            side: The position of that operand in `other`.

        Returns:
            For each factor of `forward` one of `other`; None if they do not correspond: of a factor of the shared
            operand, one contraction must keep in its result what the other contracts.
        """
        kept_side, other_kept_side = (Side.LEFT, Side.RIGHT)[shared], (Side.LEFT, Side.RIGHT)[side]
        expected = {kept_side: Side.REDUCTION, Side.REDUCTION: other_kept_side, Side.BATCH: Side.BATCH}
        its = self.by_origin_dim(other, side)
        factors: dict[int, int] = {}
        for dim, factor in self.by_origin_dim(forward, shared).items():
            match = its.get(dim)
            if match is None or other.sides[match] is not expected[forward.sides[factor]]:
                return None
            factors[factor] = match
        if not factors or len(its) != len(factors):
            return None
        # The other factors of the cotangent are in the order of the forward result.
        mine = [f for f in forward.dims[2] if f is not None and forward.sides[f] is kept_side.swapped]
        others = [f for f in other.dims[1 - side] if f is not None and other.sides[f] is other_kept_side.swapped]
        if len(mine) != len(others):
            return None
        rules = self.graph.ops[forward.op].rule, self.graph.ops[other.op].rule
        factors.update(zip(mine, others, strict=True))
        if rules[0] is None or rules[1] is None:
            return None
        if any(rules[0].sizes[mine] != rules[1].sizes[its] for mine, its in factors.items()):
            return None
        return factors

    def by_origin_dim(self, contraction: Contraction, side: int) -> dict[int, int]:
        """The factors of an operand by the dims of its origin."""
        dims = self.structure.origin_dims[contraction.operands[side]]
        return {
            dim: factor
            for dim, factor in zip(dims, contraction.dims[side], strict=True)
            if dim is not None and factor is not None
        }
