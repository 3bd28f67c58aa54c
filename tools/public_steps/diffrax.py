"""diffrax's `docs/examples/neural_ode.ipynb`: a neural ODE (equinox), an adaptive solver in loops, AdaBelief."""

import json
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from public_steps.step import Arguments, CallOfStepError, Step, first_call, importing_from


def make(checkout: Path, mesh: Mesh) -> Step:
    """The `make_step` of the notebook's `main`, with 32 solutions of 20 points.

    `main` defines its step inside itself, so the notebook's cells run up to the first call of it.
    """
    with importing_from(checkout):
        import diffrax  # noqa: F401  # pyright: ignore[reportMissingImports]
        import equinox as eqx
        import jax

    cells = json.loads((checkout / "docs" / "examples" / "neural_ode.ipynb").read_text())["cells"]
    *definitions, _ = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    notebook: dict[str, Any] = {"__name__": "neural_ode"}
    for cell in definitions:
        exec(cell, notebook)

    class Equinox:
        """`equinox`, of which the jitted step ends `main` when it is called."""

        def __getattr__(self, name: str) -> Any:
            return getattr(eqx, name)

        @staticmethod
        def filter_jit(function: Any) -> Any:
            def call(*arguments: Any) -> None:
                raise CallOfStepError(function, arguments)

            return call

    notebook["eqx"] = Equinox()
    make_step, call = first_call(lambda: notebook["main"](steps_strategy=(1,), length_strategy=(0.2,), plot=False))
    arrays, rest = eqx.partition(call, eqx.is_array)

    def step(*arrays: Any) -> Any:
        result = make_step(*eqx.combine(arrays, rest))
        return eqx.filter(result, eqx.is_array)

    def following(arguments: Arguments, result: Any) -> Arguments:
        return (*arguments[:2], result[1], result[2])

    return Step(step, jax.tree.map(lambda x: x, arrays), following, loss=lambda result: result[0], batch=(1,))
