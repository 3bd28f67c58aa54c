"""A GPT training step through `alpa.parallelize` on 8 virtual CPU devices, each step held against the serial run.

Takes real text (the sources of the Python that runs this, as bytes), trains Alpa's own GPT on it with 2-way data
parallelism, 4-way Megatron-style tensor parallelism and gradient accumulation, and prints a table. Exit code 0: every
step equals the one that plain `jax.jit` computes on one device; 1: one does not.

The model predicts the next byte, but Alpa's GPT has no causal mask, so the loss compares runs and is no measure of a
language model. Virtual devices share the machine's cores: the times say nothing about a machine with 8 devices.
"""

import argparse
import os
import re
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

MESH_SHAPE = (2, 4)
# Read when jax starts, so before it is imported; what the user has set stays.
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import alpa  # noqa: E402
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from alpa.model.bert_model import BertConfig  # noqa: E402
from alpa.model.gpt_model import FlaxGPTForLMModule  # noqa: E402
from alpa.model.model_util import TrainState  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

SEQUENCE_LENGTH = 64
BATCH_SIZE = 16
NUM_MICRO_BATCHES = 2
CONFIG = BertConfig(
    vocab_size=256,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=8,
    intermediate_size=512,
    max_position_embeddings=SEQUENCE_LENGTH,
    type_vocab_size=0,
)
# float32 rounds at 6e-8; the sums differ in order, and each step passes its differences on to the next.
RELATIVE_TOLERANCE = 1e-5

# How Megatron-LM splits a transformer over the mesh axis "model", by the end of a parameter's path: the first kernel of
# a pair by columns, the second by rows, the embedding by vocabulary. What is not named is replicated.
SHARDINGS = {
    "word_embeddings/embedding": P("model", None),
    "self/qvk_combined/kernel": P(None, "model"),
    "self/qvk_combined/bias": P("model"),
    "attention/output/dense/kernel": P("model", None),
    "intermediate/dense/kernel": P(None, "model"),
    "intermediate/dense/bias": P("model"),
    "[0-9]/output/dense/kernel": P("model", None),
}


def read_text(num_bytes: int) -> np.ndarray:
    """The first bytes of the standard library's sources in alphabetical order: uint8[num_bytes]."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= num_bytes:
            return np.frombuffer(bytes(text[:num_bytes]), np.uint8)
    raise SystemExit(f"the standard library at {sysconfig.get_path('stdlib')} has too few sources: {len(text)} bytes")


def make_batch(text: np.ndarray, rng: np.random.Generator) -> dict[str, jax.Array]:
    """BATCH_SIZE stretches of `text` from random places: inputs and labels, int32[BATCH_SIZE, SEQUENCE_LENGTH]."""
    starts = rng.integers(0, len(text) - SEQUENCE_LENGTH - 1, size=BATCH_SIZE)
    tokens = np.stack([text[start : start + SEQUENCE_LENGTH + 1] for start in starts]).astype(np.int32)
    return {"input_ids": jnp.asarray(tokens[:, :-1]), "labels": jnp.asarray(tokens[:, 1:])}


def make_state(learning_rate: float) -> TrainState:
    """The model's parameters and SGD with momentum, from a fixed seed."""
    model = FlaxGPTForLMModule(CONFIG)

    def apply(params: Any, input_ids: jax.Array) -> jax.Array:
        positions = jnp.broadcast_to(jnp.arange(SEQUENCE_LENGTH), input_ids.shape)
        output: Any = model.apply(params, input_ids, jnp.ones_like(input_ids), jnp.zeros_like(input_ids), positions)
        return output.logits

    ids = jnp.zeros((1, SEQUENCE_LENGTH), jnp.int32)
    params = model.init(jax.random.key(0), ids, ids, ids, ids)
    tx = optax.sgd(learning_rate, momentum=0.9)
    state = TrainState.create(apply_fn=apply, params=params, tx=tx, dynamic_scale=None)
    # flax starts with the Python number 0, which is weakly typed: the second step would be another program.
    return state.replace(step=jnp.zeros((), jnp.int32))


def make_step(value_and_grad: Callable[..., Any]) -> Callable[[TrainState, Any], tuple[TrainState, jax.Array]]:
    """One training step, with jax's or alpa's `value_and_grad`."""

    def train_step(state: TrainState, batch: dict[str, jax.Array]) -> tuple[TrainState, jax.Array]:
        def loss(params: Any) -> jax.Array:
            logits = state.apply_fn(params, batch["input_ids"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()

        value, grads = value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=grads), value

    return train_step


def manual_sharding(state: TrainState, batch: dict[str, jax.Array]) -> alpa.ManualShardingOption:
    """The shardings of (state, batch) on a mesh with the axes ("data", "model")."""

    def spec(path: tuple[Any, ...], leaf: Any) -> P:
        del leaf
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return next((found for end, found in SHARDINGS.items() if re.search(f"{end}$", name)), P())

    specs = (jax.tree_util.tree_map_with_path(spec, state), jax.tree.map(lambda _: P("data"), batch))
    return alpa.ManualShardingOption(("data", "model"), in_axis_resources=specs)


def relative_difference(actual: Any, expected: Any) -> float:
    """The largest difference of two pytrees, each array measured against its largest entry."""

    def difference(got: jax.Array, wanted: jax.Array) -> float:
        return float(np.max(np.abs(np.asarray(got) - np.asarray(wanted))) / np.max(np.abs(np.asarray(wanted))))

    return max(jax.tree.leaves(jax.tree.map(difference, actual, expected)))


def main() -> int:
    """Run the comparison and print it; gives back the exit code."""
    parser = argparse.ArgumentParser(description="a GPT through alpa.parallelize, held against the serial run")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    arguments = parser.parse_args()

    mesh = alpa.LocalPhysicalDeviceMesh(jax.local_devices()[:8]).get_logical_mesh(MESH_SHAPE)
    text, rng = read_text(1_000_000), np.random.default_rng(0)
    serial_state, parallel_state = make_state(arguments.learning_rate), make_state(arguments.learning_rate)
    batch = make_batch(text, rng)
    method = alpa.ShardParallel(
        devices=mesh,
        num_micro_batches=NUM_MICRO_BATCHES,
        auto_sharding_option=alpa.AutoShardingOption(enable_auto_sharding=False),
        manual_sharding_option=manual_sharding(parallel_state, batch),
    )
    serial_step = jax.jit(make_step(jax.value_and_grad))
    parallel_step: Any = alpa.parallelize(make_step(alpa.value_and_grad), method=method)

    started = time.perf_counter()
    executable = parallel_step.get_executable(parallel_state, batch)
    compile_s = time.perf_counter() - started
    collectives = Counter(
        re.findall(
            r"\b(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(",
            executable.get_hlo_text(),
        )
    )
    num_parameters = sum(leaf.size for leaf in jax.tree.leaves(serial_state.params))
    print(f"jax {jax.__version__}, alpa {alpa.__version__}, GPT with {num_parameters:,} parameters, mesh 2x4,")
    print(f"batch {BATCH_SIZE} in {NUM_MICRO_BATCHES} micro-batches of bytes of Python's standard library")
    print(
        f"compiled in {compile_s:.1f} s: " + ", ".join(f"{count} {kind}" for kind, count in collectives.most_common())
    )
    print(f"\n{'step':>4}  {'loss serial':>12}  {'loss parallel':>13}  {'max param rel. diff.':>20}  {'step ms':>8}")

    passed = True
    for number in range(1, arguments.steps + 1):
        batch = make_batch(text, rng)
        serial_state, serial_loss = serial_step(serial_state, batch)
        jax.block_until_ready(serial_state)
        started = time.perf_counter()
        parallel_state, parallel_loss = parallel_step(parallel_state, batch)
        jax.block_until_ready(parallel_state)
        step_ms = 1e3 * (time.perf_counter() - started)
        params = relative_difference(parallel_state.params, serial_state.params)
        equal = max(params, relative_difference(parallel_loss, serial_loss)) <= RELATIVE_TOLERANCE
        passed = passed and equal
        print(
            f"{number:>4}  {float(serial_loss):>12.6f}  {float(parallel_loss):>13.6f}  {params:>20.2e}  {step_ms:>8.1f}"
            + ("" if equal else f"  DIFFERS by more than {RELATIVE_TOLERANCE:.0e}")
        )
    print("\nevery step equals the serial run" if passed else "\nFAILED: the parallel run differs from the serial one")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
