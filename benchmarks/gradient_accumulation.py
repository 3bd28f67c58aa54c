"""The gain from reducing gradients over devices once a step instead of once a micro-batch.

Compares a training step with micro-batches through `alpa.parallelize` with the same step whose accumulate program sums
the gradients itself (so in every micro-batch), and with a Python loop over programs of `jax.jit` that a user would
write. All take a batch from the host. Counts the communication of a step in the compiled programs, times the steps
interleaved in random order in one process, and writes `results/gradient_accumulation-*`. Invariant: a case whose
programs do not all give the same parameters is an error, not a result.
"""

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import alpa
import jax
import jax.numpy as jnp
import numpy as np

from alpa_cfp.spmd.partition import partition
from alpa_cfp_bench.timing import Ratio, interleave, pool, ratio
from alpa_cfp_bench.workloads.meshes import logical_mesh
from alpa_cfp_bench.workloads.model import Model, training_step
from alpa_cfp_bench.workloads.models import build
from alpa_cfp_bench.workloads.shardings import STYLES, manual_sharding
from alpa_cfp_bench.workloads.sizes import MESHES, Size
from alpa_on_jax import xla_extension
from benchmarks import runner
from benchmarks.programs import Case, Placement, collective_bytes
from benchmarks.runner import Benchmark, one_row

# Each of 8 micro-batches has a sample for each of 8 devices.
SIZES = {
    "mlp": Size(batch=512, hidden=384),
    "gpt": Size(batch=64, hidden=128, sequence=32, vocabulary=512),
    "bert": Size(batch=64, hidden=128, sequence=32, vocabulary=512),
    "moe": Size(batch=64, hidden=128, sequence=16, vocabulary=512),
    "conv": Size(batch=64, image=16, channels=16),
    "unet": Size(batch=64),
}
DIFFERENCE = 1e-4
_HEADER = ("case", "micro-batches", "ours, ms", "ours / each", "ours / jit", "MB ours", "MB each", "MB jit")

_TEXT = (
    "Time of a training step with micro-batches (host batch in, new state on the mesh out). `ours` sums the gradients "
    "over devices once, after the last micro-batch; `each` is the same with the sum in every micro-batch; `jit` is a "
    "Python loop over a `jax.jit` program for a micro-batch and one for the update. Communication is what the compiled "
    "programs of a step hold: bytes of one device's results. Ratios are those of quiet moments (10th percentile by "
    "10th percentile), since other processes had the machine too, with 95% intervals; programs are interleaved in "
    "random order in one process."
)


@dataclasses.dataclass
class Step:
    """A compiled step with its state and the communication of one step, in bytes."""

    run: Callable[[Any, Any], Any]
    state: Any
    batch: Any
    communication_bytes: int

    def __call__(self) -> None:
        self.state = jax.block_until_ready(self.run(self.state, self.batch))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that the command line names."""
    parser = runner.parser(__doc__, micro_batches=[2, 4, 8], rounds=30, copies=2, seed=0, name="gradient_accumulation")
    parser.add_argument("--models", nargs="+", choices=tuple(SIZES), default=["mlp", "gpt"])
    parser.add_argument("--meshes", nargs="+", choices=MESHES, default=["2x4"], help="data x model")
    parser.add_argument("--styles", nargs="+", choices=STYLES, default=STYLES)
    options = parser.parse_args(argv)
    results = (
        measure(Case(*names), count, options.rounds, options.copies, options.seed)
        for *names, count in product(options.models, options.meshes, options.styles, options.micro_batches)
    )
    return Benchmark(options.name, _TEXT, _HEADER, one_row(_cells)).run(results, options)


def measure(case: Case, num_micro_batches: int, rounds: int, copies: int, seed: int) -> dict[str, Any]:
    """Compile and time one case."""
    model = build(case.model, SIZES[case.model])
    makers = {
        "ours": lambda: _alpa_step(case, model, num_micro_batches),
        "each": lambda: _alpa_step(case, model, num_micro_batches, reduce_each=True),
        "jit": lambda: _jit_step(case, model, num_micro_batches),
    }
    groups = {name: [make() for _ in range(copies)] for name, make in makers.items()}
    steps = {f"{name} {i}": step for name, group in groups.items() for i, step in enumerate(group)}
    _check_equal(f"{case}, {num_micro_batches} micro-batches", steps)
    single = interleave(steps, rounds, seed=seed)
    samples = {name: pool([single[f"{name} {i}"] for i in range(copies)]) for name in groups}
    pairs = {"ours / each": ("ours", "each"), "ours / jit": ("ours", "jit")}
    return {
        "case": str(case),
        "num_micro_batches": num_micro_batches,
        "copies": copies,
        "samples": {name: sample.to_json() for name, sample in samples.items()},
        "ratios": {name: ratio(samples[of], samples[to]).to_json() for name, (of, to) in pairs.items()},
        "communication_bytes": {name: group[0].communication_bytes for name, group in groups.items()},
    }


def _alpa_step(case: Case, model: Model, num_micro_batches: int, *, reduce_each: bool = False) -> Step:
    method = alpa.ShardParallel(
        devices=logical_mesh(case.mesh),
        num_micro_batches=num_micro_batches,
        auto_sharding_option=alpa.AutoShardingOption(enable_auto_sharding=False),
        manual_sharding_option=manual_sharding(model, case.style),
    )
    step: Any = alpa.parallelize(training_step(model, alpa.value_and_grad), donate_argnums=(0,), method=method)
    state = jax.tree.map(jnp.copy, model.state)
    batch = jax.tree.map(np.asarray, model.batch)
    with _sums_in_every_micro_batch() if reduce_each else contextlib.nullcontext():
        executable = step.get_executable(state, batch)
    accumulate, update = executable.accumulate_grad, executable.apply_grad
    communication = (
        num_micro_batches * collective_bytes(accumulate.step_text())
        + collective_bytes(accumulate.grad_sync_text())
        + collective_bytes(update.text())
    )
    placed = jax.device_put(state, Placement(case, model).state)
    return Step(lambda state, batch: step(state, batch)[0], placed, batch, communication)


@contextlib.contextmanager
def _sums_in_every_micro_batch() -> Iterator[None]:
    """Within the context, a program that alpa partitions keeps every reduction."""
    original = xla_extension.partition_to_run
    xla_extension.partition_to_run = lambda module, accumulators=(): (partition if accumulators else original)(module)
    try:
        yield
    finally:
        xla_extension.partition_to_run = original


def _jit_step(case: Case, model: Model, num_micro_batches: int) -> Step:
    """The loop that a user of `jax.jit` writes; metrics that a step does not return are left out."""
    placement = Placement(case, model)
    params_placement = placement.state.params

    def accumulate(state: Any, batch: Any, old: Any) -> Any:
        def loss(params: Any) -> Any:
            value, aux = model.loss(params, state, batch)
            return value, {name: part for name, part in aux.items() if name != "metrics"}

        (_, aux), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        return jax.tree.map(jnp.add, old, (grads, aux))

    def update(state: Any, sums: Any) -> Any:
        grads, aux = jax.tree.map(lambda total: total / num_micro_batches, sums)
        return model.update(state, grads, aux)

    def zeros(state: Any, batch: Any) -> Any:
        shapes = jax.eval_shape(lambda: model.loss(state.params, state, batch)[1])
        aux = {name: part for name, part in shapes.items() if name != "metrics"}
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (state.params, aux))

    batch = jax.tree.map(np.asarray, model.batch)
    parts = _split(batch, num_micro_batches)
    aux_names = list(jax.eval_shape(model.loss, model.state.params, model.state, parts[0])[1])
    aux_placement = {name: placement.replicated for name in aux_names if name != "metrics"}
    if "batch_stats" in aux_placement:
        aux_placement["batch_stats"] = placement.state.batch_stats
    sums_placement = (params_placement, aux_placement)
    jit_zeros = jax.jit(zeros, out_shardings=sums_placement)
    jit_accumulate = jax.jit(accumulate, out_shardings=sums_placement, donate_argnums=(2,))
    jit_update = jax.jit(update, out_shardings=placement.state, donate_argnums=(0,))

    def run(state: Any, batch: Any) -> Any:
        parts = [jax.device_put(part, placement.batch) for part in _split(batch, num_micro_batches)]
        sums = jit_zeros(state, parts[0])
        for part in parts:
            sums = jit_accumulate(state, part, sums)
        return jit_update(state, sums)

    state = jax.device_put(jax.tree.map(jnp.copy, model.state), placement.state)
    part = jax.device_put(parts[0], placement.batch)
    sums = jit_zeros(state, part)
    communication = num_micro_batches * collective_bytes(
        jit_accumulate.lower(state, part, sums).compile().as_text() or ""
    ) + collective_bytes(jit_update.lower(state, sums).compile().as_text() or "")
    return Step(run, state, batch, communication)


def _split(batch: Any, count: int) -> list[Any]:
    parts = {name: np.split(array, count) for name, array in batch.items()}
    return [{name: parts[name][i] for name in batch} for i in range(count)]


def _check_equal(what: str, steps: dict[str, Step]) -> None:
    """Run two steps of each and compare the parameters with those of the first."""
    for step in steps.values():
        step()
        step()
    params = {name: jax.tree.leaves(step.state.params) for name, step in steps.items()}
    (first, wanted), *others = params.items()
    for name, leaves in others:
        for leaf, other in zip(leaves, wanted, strict=True):
            difference = float(np.max(np.abs(np.asarray(leaf) - np.asarray(other))))
            if not difference <= DIFFERENCE * float(np.max(np.abs(np.asarray(other)))) + 1e-6:
                raise RuntimeError(f"{what}: {name} and {first} do not compute the same: they differ by {difference}")


def _cells(result: dict[str, Any]) -> list[str]:
    size = result["communication_bytes"]
    return [
        result["case"],
        str(result["num_micro_batches"]),
        f"{result['samples']['ours']['median_ms']:.1f}",
        *(Ratio(**result["ratios"][name]).quiet_text for name in ("ours / each", "ours / jit")),
        *(f"{size[name] / 1e6:.2f}" for name in ("ours", "each", "jit")),
    ]


if __name__ == "__main__":
    sys.exit(main())
