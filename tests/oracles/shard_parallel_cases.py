"""What Alpa's `shard_parallel` tests expect of programs on 4 devices: the table.

Invariant: no number in the table comes from this project; all are those of Alpa's tests, whose formulas are evaluated
where the tests state a formula. Costs are in the unit of alpa's `LogicalDeviceMesh`, alpha and beta being 1.
"""

from functools import partial
from typing import Any

import jax

from oracles import shard_parallel_programs as programs
from oracles.shard_parallel_compile import (
    ANY,
    COLUMNS,
    EXPERTS,
    HALF_COLUMNS,
    HALF_ROWS,
    KINDS,
    ROWS,
    SOME,
    WHOLE,
    Case,
    Counts,
    Partition,
    Shape,
)
from oracles.shard_parallel_programs import Program


def all_reduce_cost(size_bytes: float, devices: int = 4) -> float:
    """Alpa's cost of summing `size_bytes` over the devices of one axis, alpha and beta being 1."""
    return 1 + 2 * (devices - 1) / devices * size_bytes + 0.01


def _bytes(tree: Any) -> list[int]:
    return [leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)]


# What keeping one array whole costs: int(all_reduce_cost(1, 4 devices) + all_reduce_cost(1, 1 device)).
WHOLE_PENALTY = 3


def data_parallel_cost(program: Program) -> float:
    """Each gradient is summed once, and each parameter and what the optimizer keeps of it is whole."""
    params, optimizer = _bytes(program.state.params), _bytes(program.state.opt_state)
    return sum(map(all_reduce_cost, params)) + WHOLE_PENALTY * (len(params) + len(optimizer))


def data_parallel_cost_with_batch_norms(program: Program) -> float:
    """Each gradient is summed once, and the statistics of each batch norm forward and backward."""
    params, statistics = _bytes(program.state.params), _bytes(program.state.batch_stats)
    return sum(all_reduce_cost(size) + WHOLE_PENALTY for size in params + 2 * statistics)


def bert_2x2_cost(program: Program) -> float:
    """Data parallel over the first axis, the kernels' halves summed; 7 sums of a half batch over the second."""
    alpha, beta = 2, 0.1
    gradients = sum(alpha + size / 2 + 0.01 for size in _bytes(program.state.params))
    return gradients + 7 * (alpha + beta * (8 * 8 * 128 * 4 / 2) + 0.01)


def exactly(*, ar: int = 0, ag: int = 0, rs: int = 0, a2a: int = 0) -> Counts:
    """So many all-reduces, all-gathers, reduce-scatters and all-to-alls."""
    return {kind: (count,) for kind, count in zip(KINDS, (ar, ag, rs, a2a), strict=True)}


LINES: tuple[Shape, ...] = ((4, 1), (1, 4))
LINE, PLANE = (4, 1), (2, 2)
SCATTER = {"prefer_reduce_scatter": True}
ZERO_2 = {"force_data_parallel": True, **SCATTER}
NO_MIXED = {"allow_mixed_mesh_shape": False}
AXES_UNLIKE = {"alpha": (2, 2), "beta": (1, 0.1)}

_wide_mlp = partial(programs.mlp, batch=256, hidden=32)  # a large batch: data parallel is cheapest
_deep_mlp = partial(programs.mlp, batch=32, hidden=256)  # large kernels: model parallel is cheapest
_wide_bert = partial(programs.bert_layers, 64, 64, 32)
_deep_bert = partial(programs.bert_layers, 8, 8, 128)
_wide_language_model = partial(programs.bert_language_model, 32, 32, 16, 128)


def _mlp_kernels(even: Partition, odd: Partition) -> tuple[tuple[tuple[str, ...], Partition], ...]:
    return tuple(((f"Dense_{i}", "kernel"), odd if i % 2 else even) for i in range(6))


def _bert_kernels(first: Partition, second: Partition) -> tuple[tuple[tuple[str, ...], Partition], ...]:
    """Those of attention and of the dense layers: the first of each two and the second."""
    return tuple(
        ((layer, *path, "kernel"), partition)
        for layer in ("0", "1")
        for path, partition in (
            (("attention", "self", "qvk_combined"), first),
            (("attention", "output", "dense"), second),
            (("intermediate", "dense"), first),
            (("output", "dense"), second),
        )
    )


MLP = (
    *(Case("mlp_data_parallel", _wide_mlp, mesh, exactly(ar=1), 38139.12, whole_parameters=True) for mesh in LINES),
    *(
        Case("mlp_model_parallel", _deep_mlp, mesh, exactly(ar=5), 245765.05, partitions=_mlp_kernels(COLUMNS, ROWS))
        for mesh in LINES
    ),
    Case(
        "mlp_2d",
        _wide_mlp,
        PLANE,
        exactly(ar=6),
        21265.17,
        beta=(1, 0.1),
        partitions=_mlp_kernels(HALF_COLUMNS, HALF_ROWS),
    ),
    *(
        Case(
            "mlp_forced_data_parallel",
            _deep_mlp,
            mesh,
            exactly(ar=1),
            data_parallel_cost,
            options={"force_data_parallel": True},
            whole_parameters=True,
        )
        for mesh in (LINE, PLANE)
    ),
    Case(
        "mlp_batch_forced_to_the_first_axis",
        _deep_mlp,
        (4, 1),
        exactly(ar=1),
        data_parallel_cost,
        options={"force_batch_dim_to_mesh_dim": 0},
        whole_parameters=True,
    ),
    Case(
        "mlp_batch_forced_to_the_first_axis",
        _deep_mlp,
        (1, 4),
        exactly(ar=5),
        245765.05,
        options={"force_batch_dim_to_mesh_dim": 0},
    ),
    *(
        Case("mlp_zero_2", _wide_mlp, mesh, exactly(rs=1, ag=1), 38139.12, options=ZERO_2, split="optimizer")
        for mesh in LINES
    ),
    *(
        Case(
            "mlp_zero_3",
            _wide_mlp,
            mesh,
            exactly(ag=2, rs=1),
            38139.12,
            options={
                "force_zero_stage_3": True,
                "force_zero_stage_3_all_gather_threshold": (32 * 32 + 32) * 6 * 4,
            },
            split="matrices",
        )
        for mesh in LINES
    ),
    Case(
        "mlp_2d_reduce_scatter",
        _wide_mlp,
        PLANE,
        {"all-reduce": (5,), "reduce-scatter": (2,), "all-gather": range(3)},
        21265.17,
        beta=(1, 0.1),
        options=SCATTER,
        split="optimizer matrices",
    ),
    *(
        Case(
            "mlp_adafactor_reduce_scatter",
            partial(_wide_mlp, optimizer="adafactor"),
            mesh,
            {"reduce-scatter": (1,), "all-gather": range(3), "all-reduce": range(3), "all-to-all": ANY},
            data_parallel_cost,
            options=SCATTER,
            ignores_scalars=True,
        )
        for mesh in LINES
    ),
)

BERT = (
    Case(
        "bert_data_parallel",
        _wide_bert,
        LINE,
        exactly(ar=1),
        data_parallel_cost,
        whole_parameters=True,
        ignores_scalars=True,
    ),
    Case(
        "bert_data_parallel_reduce_scatter",
        _wide_bert,
        LINE,
        exactly(rs=1, ag=1),
        data_parallel_cost,
        options=SCATTER,
        split="optimizer",
        ignores_scalars=True,
    ),
    Case("bert_model_parallel", _deep_bert, LINE, exactly(ar=7), 344071.07, partitions=_bert_kernels(COLUMNS, ROWS)),
    Case(
        "bert_model_parallel_reduce_scatter",
        _deep_bert,
        (1, 4),
        exactly(ar=7),
        344071.07,
        options=SCATTER,
        partitions=_bert_kernels(COLUMNS, ROWS),
    ),
    Case("bert_remat", partial(_deep_bert, remat=True), LINE, exactly(ar=11), 540683.11),
    Case(
        "bert_2d",
        _deep_bert,
        PLANE,
        exactly(ar=8),
        bert_2x2_cost,
        **AXES_UNLIKE,
        partitions=_bert_kernels(HALF_COLUMNS, HALF_ROWS),
        ignores_scalars=True,
    ),
    Case(
        "bert_2d_reduce_scatter",
        _deep_bert,
        PLANE,
        {"all-reduce": (7,), "reduce-scatter": (2,), "all-gather": range(3)},
        bert_2x2_cost,
        **AXES_UNLIKE,
        options=SCATTER,
        split="optimizer matrices",
        ignores_scalars=True,
    ),
    Case(
        "bert_batch_forced_to_an_axis_of_one",
        _wide_bert,
        (1, 4),
        {"all-reduce": ANY},
        5505031.07,
        options={"force_batch_dim_to_mesh_dim": 0},
    ),
    Case(
        "bert_batch_of_one",
        partial(programs.bert_layers, 1, 64, 32),
        (1, 4),
        {"all-reduce": ANY},
        86023.07,
        options={"force_batch_dim_to_mesh_dim": 0},
    ),
    Case("tied_embedding", programs.tied_embedding, PLANE, {"all-reduce": ANY}, 18693.05),
    Case(
        "bert_language_model_2d",
        partial(programs.bert_language_model, 4, 4, 512, 4096),
        PLANE,
        exactly(ar=13),
        **AXES_UNLIKE,
        options={"allow_recompute_heavy_op": True, "allow_all_gather": False, **NO_MIXED},
        partitions=(
            (("word_embeddings", "embedding"), HALF_ROWS),
            (("transform", "dense", "kernel"), WHOLE),
            *_bert_kernels(HALF_COLUMNS, HALF_ROWS),
        ),
        iotas=frozenset({(2, 4, 2048)}),
        ignores_scalars=True,
    ),
    Case(
        "bert_language_model_2d_reduce_scatter",
        partial(programs.bert_language_model, 4, 4, 512, 4096),
        PLANE,
        {"all-reduce": (12,), "reduce-scatter": range(4), "all-gather": range(3)},
        **AXES_UNLIKE,
        options={"allow_recompute_heavy_op": True, "allow_all_gather": False, **NO_MIXED, **SCATTER},
        iotas=frozenset({(2, 4, 2048)}),
        split="optimizer matrices",
        may_be_whole=2,
        ignores_scalars=True,
    ),
    Case(
        "bert_language_model_data_parallel",
        _wide_language_model,
        LINE,
        exactly(ar=1),
        data_parallel_cost,
        whole_parameters=True,
        ignores_scalars=True,
    ),
    Case(
        "bert_language_model_reduce_scatter",
        _wide_language_model,
        LINE,
        exactly(ar=1, rs=1, ag=1),
        data_parallel_cost,
        options=SCATTER,
        split="optimizer",
        may_be_whole=2,
        ignores_scalars=True,
    ),
    Case(
        "bert_language_model_zero_3",
        _wide_language_model,
        LINE,
        dict.fromkeys(KINDS, ANY),
        options={"force_zero_stage_3": True, "force_zero_stage_3_all_gather_threshold": 1},
        split="matrices",
        may_be_whole=3,
    ),
)

_MIXED = {"allow_mixed_mesh_shape": True}
_MOE_WEIGHTS = (
    (("attention", "output", "dense", "kernel"), WHOLE),
    (("attention", "self", "qvk_combined", "kernel"), WHOLE),
    (("moe", "wg"), WHOLE),
    (("moe", "wi"), EXPERTS),
    (("moe", "wo"), EXPERTS),
)
MOE = (
    *(
        Case("moe_layer", programs.moe_layer, mesh, exactly(ar=1, a2a=4), 893965.09, partitions=_MOE_WEIGHTS)
        for mesh in LINES
    ),
    Case(
        "moe_layer_2d",
        programs.moe_layer,
        PLANE,
        {"all-reduce": (2,), "all-to-all": SOME},
        options={**_MIXED, "allow_all_gather": False},
    ),
    Case(
        "moe_layer_2d_reduce_scatter",
        programs.moe_layer,
        PLANE,
        {"all-to-all": SOME, "reduce-scatter": SOME, "all-gather": ANY},
        options={**_MIXED, "allow_all_gather": False, **SCATTER},
    ),
    Case(
        "moe_language_model",
        programs.moe_language_model,
        LINE,
        {"all-reduce": range(5), "all-to-all": (4,)},
        ignores_scalars=True,
    ),
    Case(
        "moe_language_model_reduce_scatter",
        programs.moe_language_model,
        LINE,
        {"reduce-scatter": (1,), "all-to-all": (4,), "all-reduce": ANY, "all-gather": ANY},
        options=SCATTER,
        ignores_scalars=True,
    ),
    Case(
        "moe_language_model_2d",
        programs.moe_language_model,
        PLANE,
        {"all-to-all": (4,), "all-reduce": ANY},
        options=_MIXED,
    ),
    Case(
        "moe_language_model_data_parallel",
        programs.moe_language_model,
        LINE,
        exactly(ar=1),
        options={"force_data_parallel": True},
        ignores_scalars=True,
    ),
    Case(
        "moe_language_model_zero_2",
        programs.moe_language_model,
        LINE,
        {"reduce-scatter": (1, 2), "all-reduce": ANY, "all-gather": ANY},
        options=ZERO_2,
        ignores_scalars=True,
    ),
)

CONV = (
    # Three batch norms, each with two sums.
    Case(
        "conv_data_parallel",
        partial(programs.conv_net, 16, 16, 4, 3),
        LINE,
        exactly(ar=7),
        data_parallel_cost_with_batch_norms,
        objective_tolerance=0.02,
        whole_parameters=True,
        ignores_scalars=True,
    ),
    Case(
        "conv_data_parallel_reduce_scatter",
        partial(programs.conv_net, 16, 16, 4, 3),
        LINE,
        {"all-reduce": (6,), "reduce-scatter": SOME, "all-gather": range(3)},
        data_parallel_cost_with_batch_norms,
        objective_tolerance=0.02,
        options=SCATTER,
        split="optimizer matrices",
        ignores_scalars=True,
    ),
    Case(
        "conv_model_parallel",
        partial(programs.conv_net, 8, 16, 256, 4),
        LINE,
        exactly(ar=3),
        ignores_scalars=True,
    ),
    Case(
        "conv_2d_mixed",
        partial(programs.conv_net, 8, 32, 8, 4),
        PLANE,
        {"all-to-all": SOME, "all-reduce": ANY, "all-gather": ANY},
        beta=(1, 0.1),
        options=_MIXED,
        ignores_scalars=True,
    ),
    Case("depthwise_conv", partial(programs.depthwise_net, 4, 8, 256), LINE, exactly(ar=1), ignores_scalars=True),
)

BASIC = (
    Case("dropout", programs.dropout_net, LINE, exactly(ar=1)),
    Case("gather", programs.gather_net, LINE, exactly(ar=1)),
)

CASES = MLP + BERT + MOE + CONV + BASIC
