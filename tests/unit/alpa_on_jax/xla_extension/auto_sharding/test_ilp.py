"""The ILP of real programs: alpa's solver finds what trying all strategies of all values finds.

Costs are added up from the strategies and reshardings of every single value, before anything is merged.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alpa_cfp.spmd.propagation import donation_pairs
from alpa_cfp.spmd.shardings.sharding import ArraySharding, Axis, LogicalMesh
from alpa_on_jax import errors
from alpa_on_jax.xla_extension.auto_sharding.communication import INFINITY_COST
from alpa_on_jax.xla_extension.auto_sharding.ilp import Ilp, shard_with_ilp
from alpa_on_jax.xla_extension.auto_sharding.options import SolverOptions
from alpa_on_jax.xla_extension.auto_sharding.solver import Solution, solve
from alpa_on_jax.xla_extension.auto_sharding.specs import Mesh
from unit.alpa_cfp.spmd.helpers import lower
from unit.alpa_on_jax.xla_extension.auto_sharding.programs import MESH_SHAPES, ilp_of_module, options, search_of

pytestmark = pytest.mark.slow


def array(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


X, W, V = array(8, 4), array(4, 8), array(8, 4)


def _mlp(w: Any, v: Any, x: Any) -> Any:
    return jax.nn.relu(x @ w) @ v


def _step(w: Any, v: Any, x: Any) -> Any:
    gradients = jax.grad(lambda w, v: jnp.mean(_mlp(w, v, x) ** 2), argnums=(0, 1))(w, v)
    return tuple(old - 0.1 * gradient for old, gradient in zip((w, v), gradients, strict=True))


def _heads(x: Any, w: Any) -> Any:
    return (x @ w).reshape(8, 2, 4).transpose(1, 0, 2).sum(1)


def _attention(q: Any, k: Any) -> Any:
    return jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k))


def _stages(x: Any, w: Any, v: Any) -> Any:
    x, w = jax.lax.optimization_barrier((x, w))
    return jnp.tanh(x @ w) @ v


# A program, what it is called with, and which arguments are donated.
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]] = {
    "a dot": (lambda x, w: x @ w, (X, W), ()),
    "two layers": (_mlp, (W, V, X), ()),
    "a training step": (_step, (W, V, X), (0, 1)),
    "heads": (_heads, (X, W), ()),
    "attention": (_attention, (array(4, 4, 8), array(4, 4, 8)), ()),
    "a sum of dots": (lambda x, w, y, v: x @ w + y @ v, (X, W, X, W), ()),
    "three added dots": (lambda x, w, v, u: x @ w + x @ v + x @ u, (X, W, W, W), ()),
    "an update in place": (lambda m, x, w: 0.9 * m + (x @ w).T, (array(8, 8), X, W), (0,)),
    "a swap": (lambda a, b: (b.T @ b, a @ a.T), (array(8, 4), array(8, 4)), ()),
    "a pad and a concatenation": (lambda x, y: jnp.concatenate((jnp.pad(x, ((0, 0), (0, 4))), y), 1), (X, W.T), ()),
    "an embedding": (lambda x, i: x[i].sum(0), (X, np.zeros(4, np.int32)), ()),
    "a masked sum": (lambda x: jnp.where(jnp.tril(jnp.ones((8, 8), bool)), x @ x.T, 0).sum(), (X,), ()),
    "barriers": (_stages, (X, W, V), ()),
    "filled values": (lambda x: (jnp.zeros((8, 8)), x + jnp.arange(4)), (X,), ()),
    "a slice of a reshape": (lambda x, w: (x @ w).reshape(4, 2, 8)[:, 0] * 2, (X, W), ()),
}

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "mixed": {"allow_mixed_mesh_shape": True},
    "split parameters": {"allow_replicated_parameters": False},
    "recompute": {"allow_recompute_heavy_op": True},
}


def _solved(
    function: Callable[..., Any], arguments: Sequence[Any], donated: Sequence[int], chosen: SolverOptions
) -> tuple[Ilp, Solution, list[tuple[int, int]]]:
    module = lower(function, arguments, [i in donated for i in range(len(arguments))])
    ilp = ilp_of_module(module, chosen)
    return ilp, solve(ilp.problem, ilp.nodes, ilp.costs), donation_pairs(module)


@pytest.mark.parametrize("mesh_shape", MESH_SHAPES, ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_choice_of_strategies_costs_less_than_the_solution(mesh_shape, variant, name):
    chosen = options(mesh_shape, **VARIANTS[variant])
    ilp, solution, donated = _solved(*PROGRAMS[name], chosen)
    search = search_of(ilp, donated)
    assert search.is_allowed(solution.choices)
    cheapest = search.cheapest()
    if cheapest >= INFINITY_COST:  # an alias may leave only reshardings that Alpa forbids, which it then pays
        assert solution.objective >= INFINITY_COST
        return
    assert solution.objective == pytest.approx(search.cost(solution.choices), abs=1e-4)
    assert solution.objective == pytest.approx(cheapest, abs=1e-4)


@pytest.mark.parametrize("mesh_shape", MESH_SHAPES, ids=str)
@pytest.mark.parametrize("name", ["two layers", "a training step", "a sum of dots"])
def test_within_a_memory_budget_no_choice_that_fits_costs_less(mesh_shape, name):
    function, arguments, donated = PROGRAMS[name]
    free = _solved(function, arguments, donated, options(mesh_shape, memory_budget_bytes=1e9))
    most = max(_memory(*free[:2], Mesh(mesh_shape)))
    fitting = 0
    for budget in (0.5 * most, 0.7 * most, 0.9 * most, most):
        chosen = options(mesh_shape, memory_budget_bytes=budget)
        try:
            ilp, solution, pairs = _solved(function, arguments, donated, chosen)
        except errors.AutoShardingInfeasibleError:
            continue
        fitting += 1
        search = search_of(ilp, pairs)
        assert max(_memory(ilp, solution, Mesh(mesh_shape))) <= budget * (1 + 1e-9)
        assert solution.objective == pytest.approx(search.cost(solution.choices), abs=1e-4)
        assert solution.objective == pytest.approx(search.cheapest(), abs=1e-4)
    assert fitting


def _memory(ilp: Ilp, solution: Solution, mesh: Mesh) -> list[float]:
    """Bytes that one device holds of what is live at each contraction."""
    values = ilp.graph.instructions
    return [
        sum(
            values[i].size_bytes / mesh.num_tiles(solution.strategy(values[i]).spec)
            for i in live
            if values[i].opcode != "marker"
        )
        for live in ilp.problem.live
    ]


@pytest.mark.parametrize("mesh_shape", MESH_SHAPES, ids=str)
def test_a_budget_that_is_too_small_is_an_error(mesh_shape):
    function, arguments, donated = PROGRAMS["two layers"]
    with pytest.raises(errors.AutoShardingInfeasibleError):
        _solved(function, arguments, donated, options(mesh_shape, memory_budget_bytes=8.0))


@pytest.mark.parametrize("mesh_shape", MESH_SHAPES, ids=str)
@pytest.mark.parametrize("name", ["a training step", "an update in place"])
def test_a_result_lies_as_the_donated_parameter_whose_buffer_it_takes(mesh_shape, name):
    ilp, solution, pairs = _solved(*PROGRAMS[name], options(mesh_shape))
    assert pairs
    for result, parameter in pairs:
        specs = [
            solution.strategy(value).spec for value in (ilp.graph.results[result], ilp.graph.parameters[parameter])
        ]
        assert specs[0] == specs[1]


def test_two_donated_parameters_whose_results_are_one_value_both_lie_as_it_does():
    def program(a: Any, b: Any, x: Any) -> Any:
        rows = x * x.max(1, keepdims=True)  # cheapest where the rows are split, as the sum of `a` is for columns
        return rows, rows, a.sum(0)

    ilp, solution, pairs = _solved(program, (array(8, 8),) * 3, (0, 1), options((4, 1)))
    assert pairs == [(0, 0), (1, 1)]
    for result, parameter in pairs:
        specs = [
            solution.strategy(value).spec for value in (ilp.graph.results[result], ilp.graph.parameters[parameter])
        ]
        assert specs[0] == specs[1]


@pytest.mark.parametrize("axis", [0, 1])
def test_the_batch_is_split_along_the_forced_axis(axis):
    function, arguments, donated = PROGRAMS["a training step"]
    ilp, solution, pairs = _solved(function, arguments, donated, options((2, 2), force_batch_dim_to_mesh_axis=axis))
    assert solution.strategy(ilp.graph.parameters[2]).spec[0] == (1, 2)[axis]
    assert solution.objective == pytest.approx(search_of(ilp, pairs).cheapest(), abs=1e-4)


_UNARY: dict[str, Callable[[Any], Any]] = {
    "tanh": jnp.tanh,
    "transpose": jnp.transpose,
    "mix dims": lambda x: x.reshape(4, 2, 8).transpose(1, 0, 2).reshape(8, 8),
    "flatten": lambda x: jnp.sin(x.reshape(64)).reshape(8, 8),
    "rows": lambda x: jnp.broadcast_to(x.sum(1, keepdims=True), (8, 8)),
    "column maximum": lambda x: x - x.max(0),
    "halves": lambda x: jnp.concatenate((x[:, 4:], x[:, :4]), 1),
}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "dot": jnp.matmul,
    "dot of the transpose": lambda x, y: x.T @ y,
    "add": jnp.add,
    "multiply": jnp.multiply,
    "batched dot": lambda x, y: jnp.einsum("bij,bjk->bik", x.reshape(4, 4, 4), y.reshape(4, 4, 4)).reshape(8, 8),
}


@st.composite
def _programs(draw: st.DrawFn) -> list[tuple[str, tuple[int, ...]]]:
    """Up to four ops, each of values that are there: three parameters and what was computed before."""
    ops = []
    for i in range(draw(st.integers(1, 4))):
        name = draw(st.sampled_from([*_BINARY, *_UNARY]))
        count = 2 if name in _BINARY else 1
        ops.append((name, tuple(draw(st.integers(0, 2 + i)) for _ in range(count))))
    return ops


@pytest.mark.parametrize("mesh_shape", MESH_SHAPES, ids=str)
@given(ops=_programs(), mixed=st.booleans(), donates=st.booleans())
@settings(max_examples=15)
def test_no_choice_costs_less_than_the_solution_of_a_random_program(mesh_shape, ops, mixed, donates):
    def program(*values: Any) -> Any:
        made = list(values)
        for name, indices in ops:
            made.append({**_UNARY, **_BINARY}[name](*(made[i] for i in indices)))
        return made[-1]

    chosen = options(mesh_shape, allow_mixed_mesh_shape=mixed)
    arguments = (array(8, 8),) * 3
    try:
        ilp, solution, donated = _solved(program, arguments, (0,) if donates else (), chosen)
    except errors.AutoShardingInfeasibleError:
        ilp = ilp_of_module(lower(program, arguments), chosen)
        assert donates
        assert search_of(ilp, [(0, 0)]).cheapest() >= INFINITY_COST
        return
    search = search_of(ilp, donated)
    assert search.is_allowed(solution.choices)
    cheapest = search.cheapest()
    if cheapest >= INFINITY_COST:  # an alias may leave only reshardings that Alpa forbids, which it then pays
        assert solution.objective >= INFINITY_COST
        return
    assert solution.objective == pytest.approx(search.cost(solution.choices), abs=1e-4)
    assert solution.objective == pytest.approx(cheapest, abs=1e-4)


def test_an_input_that_is_given_along_a_part_of_an_axis_is_refused() -> None:
    mesh = LogicalMesh((1, 4))
    module = lower(lambda x: x * 2, (np.ones((8, 8), np.float32),))
    half = ArraySharding(mesh, ((Axis(1, 1, 2),), ()))
    module.input_protos = (half.to_proto().SerializeToString(),)
    with pytest.raises(errors.ShardingOptionError, match="the ILP splits along whole mesh axes, and"):
        shard_with_ilp(module, options((1, 4)))
