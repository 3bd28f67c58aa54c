"""Strategies of dots and convolutions, and of gathers and scatters.

Dots are canonical here: batch dims, one free dim on each side, one contracting dim. In the names `S` is a split dim,
`R` one that is not, `i`, `j`, `k`, `b` the free dims of the sides, the contracting dim and a batch dim; "@ {a,b}" are
the mesh axes. Source: tensorflow-alpa's auto_sharding_dot_handler.cc and, for gathers, auto_sharding.cc.
"""

from collections.abc import Iterator

from alpa_on_jax.xla_extension.auto_sharding.filtering import keep_batch_split
from alpa_on_jax.xla_extension.auto_sharding.graph import ConvDims, DotDims, Instruction
from alpa_on_jax.xla_extension.auto_sharding.specs import Spec, replicated
from alpa_on_jax.xla_extension.auto_sharding.strategies import Choices, Strategy, StrategyBuilder, strategies_of

_BOTH_ORDERS = ((0, 1), (1, 0))


class _Contraction:
    """What the strategies of one dot or convolution are made with."""

    def __init__(self, builder: StrategyBuilder, instruction: Instruction):
        self.builder = builder
        self.mesh = builder.mesh
        self.options = builder.options
        self.instruction = instruction
        self.lhs, self.rhs = instruction.operands
        self.recompute_cost = builder.communication.recompute(self.lhs.size_bytes + self.rhs.size_bytes)

    def strategy(
        self, name: str, spec: Spec, lhs: Spec, rhs: Spec, reduced: tuple[int, ...] = (), compute_cost: float = 0.0
    ) -> Strategy:
        """The strategy of these specs, with an all-reduce along the axes `reduced`."""
        size_bytes = self.instruction.size_bytes / self.mesh.num_tiles(spec)
        cost = sum(self.builder.communication.all_reduce(size_bytes, axis) for axis in reduced)
        return Strategy(name, spec, (lhs, rhs), compute_cost, cost, reduced)

    def out(self, dims: tuple[int, ...], axes: tuple[int, ...]) -> Spec:
        return self.mesh.tile(self.instruction.rank, dims, axes)

    def left(self, dims: tuple[int, ...], axes: tuple[int, ...]) -> Spec:
        return self.mesh.tile(self.lhs.rank, dims, axes)

    def right(self, dims: tuple[int, ...], axes: tuple[int, ...]) -> Spec:
        return self.mesh.tile(self.rhs.rank, dims, axes)

    def choices(self, strategies: list[Strategy]) -> Choices:
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
        return self.strategy(name, spec, lhs, rhs, reduced, strategy.compute_cost + cost)


class _Dot(_Contraction):
    def __init__(self, builder: StrategyBuilder, instruction: Instruction, dims: DotDims):
        super().__init__(builder, instruction)
        self.dims = dims

    def all(self) -> list[Strategy]:
        """Every strategy, in Alpa's order."""
        batched = bool(self.dims.lhs_batch)
        always_batch = self.options.batch_matmul_always_split_batch and self.mesh.is_2d
        found: list[Strategy] = []
        if not (batched and always_batch):
            found += self.free_dims()
        found += self.one_batch_dim()
        if not (len(self.dims.lhs_batch) == 2 and always_batch):
            found += self.batch_and_another_dim()
        found += self.two_batch_dims()
        if self.options.allow_mixed_mesh_shape:
            found += self.batch_dim_over_all_devices()
        return found

    def free_dims(self) -> Iterator[Strategy]:
        for axes in _BOTH_ORDERS:
            yield from self.both_free(*axes)
        for axes in _BOTH_ORDERS:
            yield from self.lhs_free_and_contracting(*axes)
        for axes in _BOTH_ORDERS:
            yield from self.rhs_free_and_contracting(*axes)
        for axes in _BOTH_ORDERS:
            yield from self.contracting_twice(*axes)
        if self.options.allow_mixed_mesh_shape:
            yield from self.data_parallel_over_all_devices()

    def _fits(self, dim: int, axis: int) -> bool:
        return self.instruction.shape[dim] >= self.mesh.shape[axis]

    def both_free(self, a: int, b: int) -> Iterator[Strategy]:
        d = self.dims
        if self._fits(d.out_lhs, a) and self._fits(d.out_rhs, b):
            yield self.strategy(
                f"SS = SR x RS @ {{{a},{b}}}",
                self.out((d.out_lhs, d.out_rhs), (a, b)),
                self.left((d.lhs_free,), (a,)),
                self.right((d.rhs_free,), (b,)),
            )

    def lhs_free_and_contracting(self, a: int, b: int) -> Iterator[Strategy]:
        d = self.dims
        if self.mesh.is_2d and self._fits(d.out_lhs, a):
            yield self.strategy(
                f"SR = SS x SR @ {{{a},{b}}} (allreduce @ {b})",
                self.out((d.out_lhs,), (a,)),
                self.left((d.lhs_free, d.lhs_contracting), (a, b)),
                self.right((d.rhs_contracting,), (b,)),
                (b,),
            )

    def rhs_free_and_contracting(self, a: int, b: int) -> Iterator[Strategy]:
        d = self.dims
        if self.mesh.shape[a] > 1 and self._fits(d.out_rhs, b):
            yield self.strategy(
                f"RS = RS x SS @ {{{a},{b}}} (allreduce @ {a})",
                self.out((d.out_rhs,), (b,)),
                self.left((d.lhs_contracting,), (a,)),
                self.right((d.rhs_contracting, d.rhs_free), (a, b)),
                (a,),
            )

    def contracting_twice(self, a: int, _: int) -> Iterator[Strategy]:
        """The same partial sums on all devices along the other axis."""
        d = self.dims
        if self.mesh.is_2d:
            yield self.strategy(
                f"RR = RS x SR @ {{{a}}} (allreduce @ {a})",
                replicated(self.instruction.rank),
                self.left((d.lhs_contracting,), (a,)),
                self.right((d.rhs_contracting,), (a,)),
                (a,),
                self.recompute_cost,
            )

    def data_parallel_over_all_devices(self) -> Iterator[Strategy]:
        d, mesh = self.dims, self.mesh
        if not mesh.is_2d:
            return
        if self.lhs.shape[d.lhs_free] % mesh.num_devices == 0:
            yield self.strategy(
                "Si = Si x R @ 0",
                mesh.tile_1d(self.instruction.rank, d.out_lhs),
                mesh.tile_1d(self.lhs.rank, d.lhs_free),
                replicated(self.rhs.rank),
            )
        if self.lhs.shape[d.lhs_contracting] % mesh.num_devices == 0:
            yield self.strategy(
                "R = Sk x Sk @ 0 (allreduce @ 0)",
                replicated(self.instruction.rank),
                mesh.tile_1d(self.lhs.rank, d.lhs_contracting),
                mesh.tile_1d(self.rhs.rank, d.rhs_contracting),
                (0, 1),
            )

    def one_batch_dim(self) -> Iterator[Strategy]:
        if self.mesh.is_2d:
            return
        for i, (lhs_dim, rhs_dim) in enumerate(zip(self.dims.lhs_batch, self.dims.rhs_batch, strict=True)):
            for axis in self.mesh.axes:
                if self._fits(i, axis):
                    yield self.strategy(
                        f"Sb_{i} = Sb x Sb @ {{{axis}}}",
                        self.out((i,), (axis,)),
                        self.left((lhs_dim,), (axis,)),
                        self.right((rhs_dim,), (axis,)),
                    )

    def batch_and_another_dim(self) -> Iterator[Strategy]:
        d = self.dims
        if not d.lhs_batch or not self.mesh.is_2d:
            return
        lhs_batch, rhs_batch = d.lhs_batch[0], d.rhs_batch[0]
        for a, b in _BOTH_ORDERS:
            yield self.strategy(
                f"SbSi = SbSi x SbR @ {{{a},{b}}}",
                self.out((0, d.out_lhs), (a, b)),
                self.left((lhs_batch, d.lhs_free), (a, b)),
                self.right((rhs_batch,), (a,)),
            )
        for a, b in _BOTH_ORDERS:
            yield self.strategy(
                f"SbSj = SbR x SbSj @ {{{a},{b}}}",
                self.out((0, d.out_rhs), (a, b)),
                self.left((lhs_batch,), (a,)),
                self.right((rhs_batch, d.rhs_free), (a, b)),
            )
        for a, b in _BOTH_ORDERS:
            yield self.strategy(
                f"SbR = SbSk x SbSk @ {{{a},{b}}} (allreduce @ {b})",
                self.out((0,), (a,)),
                self.left((lhs_batch, d.lhs_contracting), (a, b)),
                self.right((rhs_batch, d.rhs_contracting), (a, b)),
                (b,),
            )

    def two_batch_dims(self) -> Iterator[Strategy]:
        d = self.dims
        if len(d.lhs_batch) != 2 or not self.mesh.is_2d:
            return
        for a, b in _BOTH_ORDERS:
            yield self.strategy(
                f"Sb = Sb x Sb @ {{{a},{b}}}",
                self.out((0, 1), (a, b)),
                self.left(d.lhs_batch, (a, b)),
                self.right(d.rhs_batch, (a, b)),
            )

    def batch_dim_over_all_devices(self) -> Iterator[Strategy]:
        if not self.mesh.is_2d:
            return
        for i, (lhs_dim, rhs_dim) in enumerate(zip(self.dims.lhs_batch, self.dims.rhs_batch, strict=True)):
            yield self.strategy(
                f"Sb_{i} = Sb x Sb @ {{0}} 1d",
                self.mesh.tile_1d(self.instruction.rank, i),
                self.mesh.tile_1d(self.lhs.rank, lhs_dim),
                self.mesh.tile_1d(self.rhs.rank, rhs_dim),
            )


class _Conv(_Contraction):
    def __init__(self, builder: StrategyBuilder, instruction: Instruction, dims: ConvDims):
        super().__init__(builder, instruction)
        self.dims = dims

    def all(self) -> list[Strategy]:
        """Every strategy, in Alpa's order."""
        d = self.dims
        lhs_features, rhs_features = self.lhs.shape[d.lhs_feature], self.rhs.shape[d.rhs_out_feature]
        found: list[Strategy] = []
        if d.feature_groups == lhs_features == rhs_features:
            found += [self.depthwise(*axes, forward=True) for axes in _BOTH_ORDERS]
        elif d.batch_groups == self.lhs.shape[d.lhs_batch] == rhs_features:
            found += [self.depthwise(*axes, forward=False) for axes in _BOTH_ORDERS]
        found += [self.batch_and_out_features(*axes) for axes in _BOTH_ORDERS]
        if self.mesh.is_2d:
            found += [self.batch_and_in_features(*axes) for axes in _BOTH_ORDERS]
        found += [self.out_and_in_features(a, b) for a, b in _BOTH_ORDERS if self.mesh.shape[a] > 1]
        if self.options.allow_mixed_mesh_shape and self.mesh.is_2d:
            found += self.data_parallel_over_all_devices()
        return found

    def depthwise(self, a: int, b: int, *, forward: bool) -> Strategy:
        d = self.dims
        return self.strategy(
            f"SS = SS x RS @ {{{a},{b}}}",
            self.out((d.out_batch, d.out_feature), (a, b)),
            self.left((d.lhs_batch, d.lhs_feature), (a, b) if forward else (b, a)),
            self.right((d.rhs_out_feature,), (b,)),
        )

    def batch_and_out_features(self, a: int, b: int) -> Strategy:
        d = self.dims
        return self.strategy(
            f"SS = SR x RS @ {{{a},{b}}}",
            self.out((d.out_batch, d.out_feature), (a, b)),
            self.left((d.lhs_batch,), (a,)),
            self.right((d.rhs_out_feature,), (b,)),
        )

    def batch_and_in_features(self, a: int, b: int) -> Strategy:
        d = self.dims
        return self.strategy(
            f"SR = SS x SR @ {{{a},{b}}} (allreduce @ {b})",
            self.out((d.out_batch,), (a,)),
            self.left((d.lhs_batch, d.lhs_feature), (a, b)),
            self.right((d.rhs_in_feature,), (b,)),
            (b,),
        )

    def out_and_in_features(self, a: int, b: int) -> Strategy:
        d = self.dims
        return self.strategy(
            f"RS = RS x SS @ {{{a},{b}}} (allreduce @ {a})",
            self.out((d.out_feature,), (b,)),
            self.left((d.lhs_feature,), (a,)),
            self.right((d.rhs_in_feature, d.rhs_out_feature), (a, b)),
            (a,),
        )

    def data_parallel_over_all_devices(self) -> Iterator[Strategy]:
        d, mesh = self.dims, self.mesh
        if self.lhs.shape[d.lhs_batch] % mesh.num_devices == 0:
            yield self.strategy(
                "Si = Si x R @ 0",
                mesh.tile_1d(self.instruction.rank, d.out_batch),
                mesh.tile_1d(self.lhs.rank, d.lhs_batch),
                replicated(self.rhs.rank),
            )
        features = self.lhs.shape[d.lhs_feature], self.rhs.shape[d.rhs_in_feature]
        if all(size % mesh.num_devices == 0 for size in features):
            yield self.strategy(
                "R = Sk x Sk @ 0 (allreduce @ 0)",
                replicated(self.instruction.rank),
                mesh.tile_1d(self.lhs.rank, d.lhs_feature),
                mesh.tile_1d(self.rhs.rank, d.rhs_in_feature),
                (0, 1),
            )


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
    """Split along a dim that is taken or updated as a whole; the indices then lie on each device."""
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
