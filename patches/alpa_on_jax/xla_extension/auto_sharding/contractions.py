"""Strategies of dots and convolutions, and of gathers and scatters.

Dots are canonical here: batch dims, one free dim on each side, one contracting dim. In the names `S` is a split dim,
`R` one that is not, `i`, `j`, `k`, `b` the free dims of the sides, the contracting dim and a batch dim; "@ {a,b}" are
the mesh axes. Source: tensorflow-alpa's auto_sharding_dot_handler.cc and, for gathers, auto_sharding.cc.

A contraction is described by its loops, as in an einsum: each loop is a dim of one or both operands and, unless it is
summed over, of the result. A strategy splits loops along mesh axes; the specs of result and operands, and the axes of
the all-reduce, follow from that.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from alpa_on_jax.xla_extension.auto_sharding.filtering import keep_batch_split
from alpa_on_jax.xla_extension.auto_sharding.graph import ConvDims, DotDims, Instruction
from alpa_on_jax.xla_extension.auto_sharding.specs import NONE, Spec, replicated
from alpa_on_jax.xla_extension.auto_sharding.strategies import Choices, Strategy, StrategyBuilder, strategies_of

_BOTH_ORDERS = ((0, 1), (1, 0))
_ALL = (0, 1)


@dataclass(frozen=True, slots=True)
class _Loop:
    """One loop of a contraction: the dim that it is of the result, of the left and of the right operand, if it is one.

    A loop that is no dim of the result is summed over.
    """

    out: int | None = None
    lhs: int | None = None
    rhs: int | None = None


class _Contraction:
    """Makes the strategies of one dot or convolution."""

    def __init__(self, builder: StrategyBuilder, instruction: Instruction):
        self.builder = builder
        self.mesh = builder.mesh
        self.options = builder.options
        self.instruction = instruction
        self.lhs, self.rhs = instruction.operands

    def split(self, name: str, *loops: tuple[_Loop, Sequence[int]], compute_cost: float = 0.0) -> Strategy:
        """The strategy that splits each of `loops` along its axes, with an all-reduce along those of summed loops."""
        spec, lhs, rhs = (
            self._spec(value, [(getattr(loop, side), axes) for loop, axes in loops])
            for side, value in (("out", self.instruction), ("lhs", self.lhs), ("rhs", self.rhs))
        )
        reduced = tuple(axis for loop, axes in loops if loop.out is None for axis in axes)
        return self._strategy(name, spec, lhs, rhs, reduced, compute_cost)

    def _spec(self, value: Instruction, dims: Sequence[tuple[int | None, Sequence[int]]]) -> Spec:
        codes = [NONE] * value.rank
        for dim, axes in dims:
            if dim is not None:
                for axis in axes:
                    codes[dim] |= self.mesh.code(axis)
        return tuple(codes)

    def _strategy(
        self, name: str, spec: Spec, lhs: Spec, rhs: Spec, reduced: tuple[int, ...], compute_cost: float
    ) -> Strategy:
        size_bytes = self.instruction.size_bytes / self.mesh.num_tiles(spec)
        cost = sum(self.builder.communication.all_reduce(size_bytes, axis) for axis in reduced)
        return Strategy(name, spec, (lhs, rhs), compute_cost, cost, reduced)

    def choices(self, strategies: Iterator[Strategy]) -> Choices:
        """Those that remain, different ones, where nothing is split unevenly."""
        even = {(each.spec, each.operand_specs): each for each in reversed([*map(self._even, strategies)])}
        return Choices(keep_batch_split(self.builder, self.instruction, tuple(reversed(even.values()))))

    def _even(self, strategy: Strategy) -> Strategy:
        """`strategy` with nothing split along the axes that would split a dim unevenly: all devices there do the same.

        In Alpa such a strategy pads (see `StrategyBuilder.uneven_axes`). That its devices compute as much as one costs
        what Alpa lets it cost where `allow_recompute_heavy_op` allows it: a reduction of the operands along the axis.
        """
        axes = self.builder.uneven_axes(self.instruction, strategy)
        if not axes:
            return strategy
        spec, lhs, rhs = (
            self.mesh.without_axes(each, axes) for each in (strategy.spec, *strategy.operand_specs) if each is not None
        )
        reduced = tuple(axis for axis in strategy.all_reduce_axes if axis not in axes)
        operand_bytes = self.lhs.size_bytes + self.rhs.size_bytes
        cost = sum(self.builder.communication.all_reduce(operand_bytes, axis) for axis in axes)
        name = f"{strategy.name}, not @ {','.join(map(str, sorted(axes)))}"
        return self._strategy(name, spec, lhs, rhs, reduced, strategy.compute_cost + cost)


class _Dot(_Contraction):
    def __init__(self, builder: StrategyBuilder, instruction: Instruction, dims: DotDims):
        super().__init__(builder, instruction)
        self.batch = [_Loop(i, *sides) for i, sides in enumerate(zip(dims.lhs_batch, dims.rhs_batch, strict=True))]
        self.i = _Loop(dims.out_lhs, lhs=dims.lhs_free)
        self.j = _Loop(dims.out_rhs, rhs=dims.rhs_free)
        self.k = _Loop(None, dims.lhs_contracting, dims.rhs_contracting)
        self.sizes = {self.i: self.lhs.shape[dims.lhs_free], self.k: self.lhs.shape[dims.lhs_contracting]}

    def all(self) -> Iterator[Strategy]:
        """Every strategy, in Alpa's order."""
        always_batch = self.options.batch_matmul_always_split_batch and self.mesh.is_2d
        if not (self.batch and always_batch):
            yield from self.free_dims()
        if self.mesh.is_2d:
            if not (len(self.batch) == 2 and always_batch):
                yield from self.batch_and_another_dim()
            if len(self.batch) == 2:
                for a, b in _BOTH_ORDERS:
                    yield self.split(f"Sb = Sb x Sb @ {{{a},{b}}}", (self.batch[0], [a]), (self.batch[1], [b]))
            if self.options.allow_mixed_mesh_shape:
                for i, batch in enumerate(self.batch):
                    yield self.split(f"Sb_{i} = Sb x Sb @ {{0}} 1d", (batch, _ALL))
        else:
            for i, batch in enumerate(self.batch):
                for axis in self.mesh.axes:
                    if self._fits(batch, axis):
                        yield self.split(f"Sb_{i} = Sb x Sb @ {{{axis}}}", (batch, [axis]))

    def free_dims(self) -> Iterator[Strategy]:
        i, j, k, mesh = self.i, self.j, self.k, self.mesh
        for a, b in _BOTH_ORDERS:
            if self._fits(i, a) and self._fits(j, b):
                yield self.split(f"SS = SR x RS @ {{{a},{b}}}", (i, [a]), (j, [b]))
        for a, b in _BOTH_ORDERS:
            if mesh.is_2d and self._fits(i, a):
                yield self.split(f"SR = SS x SR @ {{{a},{b}}} (allreduce @ {b})", (i, [a]), (k, [b]))
        for a, b in _BOTH_ORDERS:
            if mesh.shape[a] > 1 and self._fits(j, b):
                yield self.split(f"RS = RS x SS @ {{{a},{b}}} (allreduce @ {a})", (k, [a]), (j, [b]))
        if not mesh.is_2d:
            return
        # The same partial sums on all devices along the other axis.
        recompute_cost = self.builder.communication.recompute(self.lhs.size_bytes + self.rhs.size_bytes)
        for a in _ALL:
            yield self.split(f"RR = RS x SR @ {{{a}}} (allreduce @ {a})", (k, [a]), compute_cost=recompute_cost)
        if self.options.allow_mixed_mesh_shape:
            for loop, name in ((i, "Si = Si x R @ 0"), (k, "R = Sk x Sk @ 0 (allreduce @ 0)")):
                if self.sizes[loop] % mesh.num_devices == 0:
                    yield self.split(name, (loop, _ALL))

    def batch_and_another_dim(self) -> Iterator[Strategy]:
        for batch in self.batch[:1]:
            for a, b in _BOTH_ORDERS:
                yield self.split(f"SbSi = SbSi x SbR @ {{{a},{b}}}", (batch, [a]), (self.i, [b]))
            for a, b in _BOTH_ORDERS:
                yield self.split(f"SbSj = SbR x SbSj @ {{{a},{b}}}", (batch, [a]), (self.j, [b]))
            for a, b in _BOTH_ORDERS:
                name = f"SbR = SbSk x SbSk @ {{{a},{b}}} (allreduce @ {b})"
                yield self.split(name, (batch, [a]), (self.k, [b]))

    def _fits(self, loop: _Loop, axis: int) -> bool:
        assert loop.out is not None
        return self.instruction.shape[loop.out] >= self.mesh.shape[axis]


class _Conv(_Contraction):
    def __init__(self, builder: StrategyBuilder, instruction: Instruction, dims: ConvDims):
        super().__init__(builder, instruction)
        self.dims = dims
        self.batch = _Loop(dims.out_batch, lhs=dims.lhs_batch)
        self.out_features = _Loop(dims.out_feature, rhs=dims.rhs_out_feature)
        self.in_features = _Loop(None, dims.lhs_feature, dims.rhs_in_feature)

    def all(self) -> Iterator[Strategy]:
        """Every strategy, in Alpa's order."""
        yield from self.depthwise()
        for a, b in _BOTH_ORDERS:
            yield self.split(f"SS = SR x RS @ {{{a},{b}}}", (self.batch, [a]), (self.out_features, [b]))
        if self.mesh.is_2d:
            for a, b in _BOTH_ORDERS:
                name = f"SR = SS x SR @ {{{a},{b}}} (allreduce @ {b})"
                yield self.split(name, (self.batch, [a]), (self.in_features, [b]))
        for a, b in _BOTH_ORDERS:
            if self.mesh.shape[a] > 1:
                name = f"RS = RS x SS @ {{{a},{b}}} (allreduce @ {a})"
                yield self.split(name, (self.in_features, [a]), (self.out_features, [b]))
        if self.options.allow_mixed_mesh_shape and self.mesh.is_2d:
            if self.lhs.shape[self.dims.lhs_batch] % self.mesh.num_devices == 0:
                yield self.split("Si = Si x R @ 0", (self.batch, _ALL))
            features = self.lhs.shape[self.dims.lhs_feature], self.rhs.shape[self.dims.rhs_in_feature]
            if all(size % self.mesh.num_devices == 0 for size in features):
                yield self.split("R = Sk x Sk @ 0 (allreduce @ 0)", (self.in_features, _ALL))

    def depthwise(self) -> Iterator[Strategy]:
        """Those of a convolution of each channel by itself, or of the gradient of its kernel."""
        d = self.dims
        lhs_features, lhs_batch = self.lhs.shape[d.lhs_feature], self.lhs.shape[d.lhs_batch]
        channels = self.rhs.shape[d.rhs_out_feature]
        if d.feature_groups == lhs_features == channels:
            batch, channel = self.batch, _Loop(d.out_feature, d.lhs_feature, d.rhs_out_feature)
        elif d.batch_groups == lhs_batch == channels:
            batch, channel = _Loop(d.out_batch, d.lhs_feature), _Loop(d.out_feature, d.lhs_batch, d.rhs_out_feature)
        else:
            return
        for a, b in _BOTH_ORDERS:
            yield self.split(f"SS = SS x RS @ {{{a},{b}}}", (batch, [a]), (channel, [b]))


@strategies_of("dot_general")
def _dot(builder: StrategyBuilder, instruction: Instruction) -> Choices:
    assert instruction.dot is not None
    dot = _Dot(builder, instruction, instruction.dot)
    return dot.choices(dot.all())


@strategies_of("convolution")
def _conv(builder: StrategyBuilder, instruction: Instruction) -> Choices:
    assert instruction.conv is not None
    conv = _Conv(builder, instruction, instruction.conv)
    return conv.choices(conv.all())


@strategies_of("gather", "scatter")
def _indexed(builder: StrategyBuilder, instruction: Instruction) -> Choices:
    """Split along a dim that is taken or updated as a whole; the indices are then replicated."""
    mesh = builder.mesh
    strategies = []
    for dim in instruction.gather_window_dims:
        for axis in mesh.axes:
            if instruction.shape[dim] >= mesh.shape[axis]:
                required = [mesh.tile(operand.rank, (dim,), (axis,)) for operand in _windows(instruction)]
                required.insert(1, replicated(instruction.operands[1].rank))
                spec = mesh.tile(instruction.rank, (dim,), (axis,))
                strategies.append(Strategy(f"S{dim} @ {axis}", spec, tuple(required)))
    strategies.append(builder.replicated_strategy(instruction, 0.0))
    return Choices(tuple(strategies))


def _windows(instruction: Instruction) -> list[Instruction]:
    """The operands of a gather or scatter without its indices."""
    return [operand for i, operand in enumerate(instruction.operands) if i != 1]
