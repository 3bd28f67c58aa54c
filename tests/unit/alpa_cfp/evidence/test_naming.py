"""Blocks are called what the program's user calls them."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alpa_cfp.analysis.blocks import Blocks, find_blocks
from alpa_cfp.analysis.reading import read_graph
from alpa_cfp.evidence.naming import (
    block_names,
    contraction_of,
    distinct_names,
    is_number,
    ops_without_rule,
    parameter_paths,
    scopes_of,
    short_name,
)
from alpa_cfp.jit.tracing import trace
from alpa_cfp.spmd.module.hlo_module import HloModule
from alpa_cfp.spmd.shardings import sharding_rules
from alpa_cfp_bench.workloads.model import train_step
from alpa_cfp_bench.workloads.models import build

pytestmark = pytest.mark.slow


@cache
def model_step(name: str) -> HloModule:
    """A training step of a model of the integration tests, as `autoshard` traces it."""
    model = build(name)
    return trace(train_step(model, jax.value_and_grad), (model.state, model.batch), {}, 0, "cpu").module


def blocks_of(module: HloModule) -> Blocks:
    return find_blocks(read_graph(module.bytecode))


def traced(function: object, *args: object) -> HloModule:
    return trace(function, args, {}, (), "cpu").module  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("name", "root", "scopes"),
    [
        ("jit(step)/jvp(GPT)/encoder/layer/0/attention/qkv/dot_general", "GPT", "encoder/layer/0/attention/qkv"),
        ("jit(step)/transpose(jvp(GPT))/head/dot_general", "GPT", "head"),
        ("jit(step)/jvp(GPT)/dot_general", "GPT", ""),
        ("jit(step)/jvp()/dot_general", "", ""),
        ("layer/dot_general", "", "layer"),
        ("...hq,...kh->...qk/dot_general", "", "...hq,...kh->...qk"),
        ("dot_general", "", ""),
        ("", "", ""),
        ("jit(f)/vmap(jit(g/h))/a/checkpoint/rematted_computation/b/jit(_take)/gather", "", "a/b"),
        ("jit(f)/a/vmap(b)/dot_general", "", "a/b"),
        ("jit(f)/model/while/body/closed_call/layer/dot_general", "", "model/layer"),
        ("jit(f)/layer_0/layer_0._attended/q/dot_general", "", "layer_0/q"),
        ("jit(f)/attention/...qhd,...khd->...hqk/dot_general", "", "attention/...qhd,...khd->...hqk"),
    ],
)
def test_scopes_are_what_the_user_wrote_without_what_jax_adds(name: str, root: str, scopes: str) -> None:
    assert scopes_of(name) == (root, scopes)


@given(st.lists(st.sampled_from(["a", "a (2)", "b"])))
def test_names_are_made_distinct_and_stay_where_they_are_alone(names: list[str]) -> None:
    found = distinct_names(names)
    assert len(set(found)) == len(found) == len(names)
    assert all(new.startswith(old) for old, new in zip(names, found, strict=True))
    assert set(names) <= set(found)


def test_blocks_of_a_gpt_are_called_by_their_layers() -> None:
    module = model_step("gpt")
    names = block_names(module.bytecode, blocks_of(module))
    for part in ("layer/0/attention", "layer/1/attention", "layer/0/intermediate", "layer/1/output"):
        assert any(part in name for name in names), names


@pytest.mark.parametrize("name", ["gpt", "llama", "llama, scan", "llama, tied", "moe", "wide_resnet", "unet"])
def test_no_block_of_a_model_is_only_numbered(name: str) -> None:
    module = model_step(name)
    names = block_names(module.bytecode, blocks_of(module))
    assert [each for each in names if each.startswith("block ")] == []


def test_a_head_that_is_tied_to_the_embedding_is_called_head() -> None:
    module = model_step("gpt")
    assert block_names(module.bytecode, blocks_of(module))[-1] == "head"


def test_through_functions_whose_parameters_are_numbered_embedding_and_head_are_told_by_what_they_do() -> None:
    names = block_names((module := model_step("llama, scan")).bytecode, blocks_of(module))
    assert (names[0], names[-1]) == ("embedding", "head")


def test_scopes_that_are_not_common_to_all_blocks_are_kept_though_jax_wraps_them() -> None:
    square = np.ones((16, 16), np.float32)

    def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
        for number, weight in enumerate(weights):
            with jax.named_scope(f"layer_{number}"):
                x = jnp.tanh(x @ weight)
        return jnp.mean(x**2)

    module = traced(jax.grad(loss), [square] * 2, square)
    assert block_names(module.bytecode, blocks_of(module)) == ("layer_0", "layer_1")


def test_blocks_of_a_program_without_scopes_are_called_after_their_weights() -> None:
    square = np.ones((16, 16), np.float32)
    module = traced(lambda x, v, w: jnp.tanh(x @ v) @ w["out"], square, square, {"out": square})
    assert block_names(module.bytecode, blocks_of(module)) == ("v", "out")


def test_blocks_of_a_program_that_says_nothing_are_numbered() -> None:
    square = np.ones((16, 16), np.float32)
    module = traced(lambda *args: jnp.tanh(args[0] @ args[1]) @ args[2], square, square, square)
    names = block_names(module.bytecode, blocks_of(module))
    assert names == tuple(f"block {number}" for number in range(2))


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("state.params['params']['layer_0']['q']['kernel']", "layer_0/q"),
        ("state.params['params']['embedding']['embedding']", "embedding"),
        ("weights['layers'][0]['up']", "layers/0/up"),
        ("args[0]['w']", "w"),
        ("weights[3]", "weights/3"),
        ("w", "w"),
        ("", ""),
    ],
)
def test_a_weight_is_called_by_the_part_of_its_path_that_says_which_it_is(path: str, name: str) -> None:
    assert short_name(path) == name


def test_parameters_are_called_by_their_paths() -> None:
    paths = parameter_paths(model_step("gpt").bytecode)
    assert any(path.startswith("state.params['params']") and "'kernel'" in path for path in paths)


def test_parameters_of_a_function_that_takes_all_alike_are_numbered() -> None:
    square = np.ones((16, 16), np.float32)
    paths = parameter_paths(traced(lambda *args: args[0] @ args[1], square, square).bytecode)
    assert paths == ("args[0]", "args[1]")
    assert all(map(is_number, paths))
    assert not any(map(is_number, ("args[0]['w']", "state.params[0]", "w")))


def _words(function: object, *shapes: tuple[int, ...], dtype: type = np.float32) -> list[str]:
    arguments = [np.ones(shape, dtype if number else np.float32) for number, shape in enumerate(shapes)]
    blocks = blocks_of(traced(function, *arguments))
    return [contraction_of(blocks.graph, block) for block in blocks.blocks]


def test_contractions_are_told_by_their_sizes() -> None:
    assert _words(lambda x, w: x @ w, (8, 16), (16, 32)) == ["dot 8x16 by 16x32"]
    assert _words(lambda x, w: jnp.take(x, w, axis=0), (64, 16), (8,), dtype=np.int32) == ["lookup in 64x16"]
    assert _words(jnp.tanh, (8, 16)) == ["no contraction"]

    def convolved(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    assert _words(convolved, (8, 16, 16, 4), (3, 5, 4, 32)) == ["convolution 3x5, 4 to 32"]


def test_ops_without_a_sharding_rule_are_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding_rules, "_TOP_K", "")  # as before it had one
    square = np.ones((16, 16), np.float32)
    blocks = blocks_of(traced(lambda x, w: jax.lax.top_k(jax.lax.top_k(x @ w, 16)[0], 2)[0], square, square))
    assert len(blocks.graph.without_rule) == 2
    assert ops_without_rule(blocks.graph, blocks.blocks[0]) == ("top_k",)


def test_a_last_block_whose_result_is_a_scalar_is_no_head() -> None:
    def loss(table: jax.Array, rows: jax.Array, weight: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.vdot(table[rows].sum(0), weight))

    module = traced(loss, np.ones((16, 8), np.float32), np.zeros(4, np.int32), np.ones(8, np.float32))
    blocks = blocks_of(module)
    names = block_names(module.bytecode, blocks)
    assert len(names) == len(blocks.blocks) == 2
    assert "head" not in names
