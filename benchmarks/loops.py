"""Is a loop that `autoshard` unrolls as fast as the loop? A recurrence, with its gradient, beside plain `jax.jit`.

The step learns a small policy through so many steps of a cart with a pole, a `lax.scan` in which each step depends on
the last one by elementwise ops alone: unrolled, a compiler that fuses computes earlier steps again in later ones.
`jax.jit` runs the same function as it is, with the samples split over the same devices. Prints a line for each number
of steps and of devices, and adds to `results/loops-*`. Invariant: what is timed gives what `jax.jit` gives.
"""

import sys
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from alpa_cfp import CFPOption, autoshard
from alpa_cfp_bench.timing import interleave, pool, ratio
from benchmarks import runner
from benchmarks.runner import Benchmark, one_row

_SAMPLES = 64
_TOLERANCE = 1e-4

_TEXT = (
    f"Time of a gradient step of a policy through a recurrence of {_SAMPLES} samples: planned by `autoshard` (costs "
    "estimated), which unrolls it, beside plain `jax.jit`, which keeps the loop, with the samples split over the same "
    "devices. Interleaved in random order in one process, {copies} copies of each; intervals over copies."
)

State = tuple[jax.Array, jax.Array]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases that the command line names."""
    parser = runner.parser(__doc__, steps=[4, 8, 10, 16, 32], devices=[1, 8], rounds=60, copies=4, seed=0)
    options = parser.parse_args(argv)
    results = (
        measure(devices, steps, options.rounds, options.copies, options.seed)
        for devices, steps in product(options.devices, options.steps)
    )
    header = ("devices", "steps", "planned, ms", "loop, ms", "planned by loop")
    return Benchmark("loops", _TEXT.format(copies=options.copies), header, one_row(_cells)).run(results, options)


def measure(devices: int, steps: int, rounds: int, copies: int, seed: int) -> dict[str, Any]:
    """Time both for one length of the loop.

    Raises:
        RuntimeError: the planned step gives something else than `jax.jit`.
    """
    fn = _learning(steps)
    mesh = Mesh(np.array(jax.local_devices()[:devices]), ("samples",))
    args = jnp.full((4, 1), 0.1), jnp.sin(jnp.arange(4.0 * _SAMPLES)).reshape(_SAMPLES, 4) / 10
    option = CFPOption(costs="estimate", progress=False)
    runs: dict[str, Callable[[], object]] = {}
    for copy in range(copies):
        planned = autoshard(fn, mesh, *args, option=option).jit(fn)
        split = tuple(NamedSharding(mesh, PartitionSpec(*axes)) for axes in ((), ("samples",)))
        loop = jax.jit(fn, in_shardings=split)
        _hold(planned(*args), loop(*args))
        runs |= {
            f"{name} {copy}": lambda run=run: jax.block_until_ready(run(*args))
            for name, run in (("planned", planned), ("loop", loop))
        }
    timed = interleave(runs, rounds, seed=seed)
    samples = {name: pool([timed[f"{name} {copy}"] for copy in range(copies)]) for name in ("planned", "loop")}
    return {
        "devices": devices,
        "steps": steps,
        **{name: each.to_json() for name, each in samples.items()},
        "ratio": ratio(samples["planned"], samples["loop"], seed=seed).to_json(),
        "ratio_text": ratio(samples["planned"], samples["loop"], seed=seed).paired_text,
    }


def _hold(results: State, expected: State) -> None:
    for result, wanted in zip(map(np.asarray, results), map(np.asarray, expected), strict=True):
        if np.abs(result - wanted).max() > _TOLERANCE * np.abs(wanted).max():
            raise RuntimeError("the planned step gives something else than jax.jit")


def _learning(steps: int) -> Callable[[jax.Array, jax.Array], State]:
    def loss(policy: jax.Array, states: jax.Array) -> jax.Array:
        def body(states: jax.Array, _: None) -> State:
            states = _moved(states, jnp.tanh(states @ policy)[:, 0])
            return states, states[:, 2] ** 2

        return jnp.mean(lax.scan(body, states, None, length=steps)[1])

    def learn(policy: jax.Array, states: jax.Array) -> State:
        value, gradient = jax.value_and_grad(loss)(policy, states)
        return policy - 0.1 * gradient, value

    return learn


def _moved(states: jax.Array, force: jax.Array) -> jax.Array:
    """The states (position, velocity, angle, angular velocity) after 0.02 s."""
    position, velocity, angle, spin = (states[:, column] for column in range(4))
    push = (10 * force + 0.05 * spin**2 * jnp.sin(angle)) / 1.1
    fall = (9.8 * jnp.sin(angle) - jnp.cos(angle) * push) / (0.5 * (4 / 3 - 0.1 * jnp.cos(angle) ** 2 / 1.1))
    pull = push - 0.05 * fall * jnp.cos(angle) / 1.1
    return jnp.stack(
        [position + 0.02 * velocity, velocity + 0.02 * pull, angle + 0.02 * spin, spin + 0.02 * fall], axis=1
    )


def _cells(result: dict[str, Any]) -> list[str]:
    return [
        str(result["devices"]),
        str(result["steps"]),
        f"{result['planned']['median_ms']:.3f}",
        f"{result['loop']['median_ms']:.3f}",
        result["ratio_text"],
    ]


if __name__ == "__main__":
    sys.exit(main())
