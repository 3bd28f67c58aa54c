"""A training step of two layers with momentum: small, and with everything that a plan decides about."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from alpa_cfp.analysis.blocks import Blocks, find_blocks
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.candidates.block_candidates import BlockCandidates, distinct, find_block_candidates
from alpa_cfp.costs import CommunicationCosts, Rates
from alpa_cfp.extraction.subprograms import find_subprograms
from alpa_cfp.search import SearchProblem
from alpa_cfp.select.alike import computing_alone
from alpa_cfp.select.search_problem import Boundaries, find_boundaries, make_problem, resharding_s
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_cfp.strategies.block_strategy import StateSharding
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build
from alpa_cfp_bench.workloads.sizes import TINY, Size
from unit.alpa_cfp.spmd.helpers import lower, marked

MESH = LogicalMesh((8,))
WIDTH = 64


def two_layers(weights: Any, moments: Any, x: Any) -> Any:
    """(weights, moments, batch) -> (new weights, new moments)."""

    def loss(weights: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ weights[0]) @ weights[1] - x) ** 2)

    moved = jax.tree.map(lambda m, g: 0.9 * m + g, moments, jax.grad(loss)(weights))
    return jax.tree.map(lambda w, m: w - 0.1 * m, weights, moved), moved


@cache
def two_layer_module() -> HloModule:
    """The step, its weights and moments donated; not to be changed."""

    def flat(v: Any, w: Any, m: Any, n: Any, x: Any) -> Any:
        weights, moments = two_layers((v, w), (m, n), x)
        return (*weights, *moments)

    square = np.ones((WIDTH, WIDTH), np.float32)
    return lower(flat, (square,) * 5, donated=(True,) * 4 + (False,))


@cache
def uncovered_module() -> HloModule:
    """A step with a Fourier transform, its weight donated; not to be changed. XLA partitions it with `uncovered`."""

    def step(w: Any, x: Any) -> Any:
        return w - 0.1 * jax.grad(lambda w: (jnp.abs(jnp.fft.fft(x @ w, axis=1)) ** 2).mean())(w)

    return lower(step, (np.ones((32, 32), np.float32), np.ones((64, 32), np.float32)), donated=(True, False))


@cache
def two_layer_blocks() -> Blocks:
    """Its blocks."""
    return find_blocks(read_graph(two_layer_module().bytecode))


@cache
def two_layer_candidates() -> tuple[BlockCandidates, ...]:
    """Their candidates on `MESH`."""
    return find_block_candidates(find_subprograms(two_layer_module(), two_layer_blocks()), MESH)


@cache
def two_layer_boundaries() -> Boundaries:
    """What moves between them."""
    return find_boundaries(two_layer_module(), two_layer_blocks(), two_layer_candidates())


@cache
def model_module(name: str, size: Size = TINY) -> HloModule:
    """(state, batch) -> new state, of a model of the integration tests, its state donated; not to be changed."""
    model = build(name, size)
    train = train_step(model, jax.value_and_grad)
    return _lowered(name, lambda state, batch: train(state, batch)[0], model.state, model.batch)


@cache
def stage_module(name: str, size: Size = TINY) -> HloModule:
    """(state, (sums of gradients, batch)) -> new state, marked as a candidate stage of alpa's is; not to be changed."""
    model = build(name, size)
    names: list[str] = []

    def mark(stage: str, values: Any) -> Any:
        # Each value by itself, as alpa does.
        names.extend([stage] * len(jax.tree.leaves(values)))
        return jax.tree.map(jax.lax.optimization_barrier, values)

    def step(state: Any, others: Any) -> Any:
        sums, batch = others
        before, old, samples = mark("gradient$start", (state, sums, batch))
        grads, aux = jax.grad(lambda params: model.loss(params, before, samples), has_aux=True)(before.params)
        new = mark("gradient$end", (jax.tree.map(jnp.add, old, grads), aux))
        late, (gradients, others) = mark("0_apply_grad$start", (state, new))
        return mark("0_apply_grad$end", model.update(late, gradients, others))

    module = _lowered(name, step, model.state, (model.state.params, model.batch))
    return marked(module, names)


def _lowered(name: str, step: Callable[[Any, Any], Any], state: Any, others: Any) -> HloModule:
    """A step, its state donated."""
    lowered = jax.jit(step, keep_unused=True).trace(state, others).lower(lowering_platforms=("cpu",))
    donated = (True,) * len(jax.tree.leaves(state)) + (False,) * len(jax.tree.leaves(others))
    return HloModule.from_stablehlo(name, str(lowered.compiler_ir("stablehlo")), donated)


def data_parallel(*shardings: StateSharding) -> tuple[int, ...]:
    """The plan of the two layers that splits samples, with a state sharding for each block."""
    samples = next(each.strategy for each in two_layer_candidates()[0].candidates if each.strategy.factors == (0,))
    return tuple(
        [each.strategy for each in block.candidates].index(replace(samples, state_sharding=own))
        for block, own in zip(two_layer_candidates(), shardings, strict=True)
    )


def measured_program(module: HloModule) -> bytes:
    """The program that is measured for a candidate of this module."""
    program = computing_alone(module).partitioned
    assert program is not None
    return program.bytecode


def measured_numbers(block_candidates: Sequence[BlockCandidates]) -> dict[bytes, int]:
    """For each program that may be measured the number of the candidate that it is measured for."""
    found: dict[bytes, int] = {}
    for number, each in enumerate(distinct(block_candidates)):
        found.setdefault(measured_program(each.module), number)
    return found


def estimated_problem(
    block_candidates: Sequence[BlockCandidates],
    boundaries: Boundaries,
    times_s: Sequence[Sequence[float]],
    rates: Rates,
) -> SearchProblem:
    """The search problem with resharding as the rates say."""
    between_s = [resharding_s(edge, CommunicationCosts(rates)) for edge in boundaries.crossings]
    return make_problem(block_candidates, boundaries, times_s, between_s)
