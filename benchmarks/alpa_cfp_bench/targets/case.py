"""A model on a target: which step is planned, for which devices, along which axes.

Takes a model of a published or another size, a target and a mesh; gives the training step with the shapes of its
arguments. Invariant: no array is made, whatever the size of the model.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Self

import jax

from alpa_cfp import quantities, target
from alpa_cfp.targets.target import Target
from alpa_cfp_bench.workloads import published
from alpa_cfp_bench.workloads.sizes import Size

# The type in which a model's products are made, whose peak its utilisation is of; GPUs make those of float32 in tf32.
_PRODUCTS_IN = {"gpt": "f16", "moe": "f16", "llama": "bf16", "wide_resnet": "tf32"}
_PRODUCTS_OF_SIZED_IN = {"gpt_bf16": "bf16"}
_FLOAT32_IN = "tf32"


@dataclass(frozen=True, slots=True)
class Sized:
    """A model of `workloads.models`, as large as one wants.

    Attributes:
        model: A key of `workloads.sizes.SIZES`.
        size: Of the model and its batch.
    """

    model: str
    size: Size

    @property
    def samples(self) -> int:
        """The samples of a step."""
        return self.size.batch

    @property
    def products_in(self) -> str:
        """The type in which its products are made."""
        return _PRODUCTS_OF_SIZED_IN.get(self.model, _FLOAT32_IN)


@dataclass(frozen=True, slots=True)
class Step:
    """A training step, of which only shapes exist.

    Attributes:
        function: (state, batch) -> (new state, loss); the state may be donated.
        state, batch: Pytrees of `jax.ShapeDtypeStruct`.
        parameters: How many numbers are trained.
    """

    function: Callable[[Any, Any], tuple[Any, Any]]
    state: Any
    batch: Any
    parameters: int


@dataclass(frozen=True, slots=True)
class TargetCase:
    """A training step on a target.

    Attributes:
        model: The model. The mesh of a published one has the target's devices, so that they divide its samples.
        target: The target, as `alpa_cfp.target` takes it: a chip's file is named by its path.
        mesh: The shape of the logical mesh.
    """

    model: published.Case | Sized
    target: str
    mesh: tuple[int, ...]

    @classmethod
    def on(cls, model: published.Case | Sized, named: str, mesh: tuple[int, ...] = ()) -> Self:
        """A model on a target.

        Args:
            model: The model; of a published one the mesh does not count.
            named: The target, as `alpa_cfp.target` takes it.
            mesh: The shape of the logical mesh; empty for the usual one.

        Raises:
            TargetError: there is no such target, or the mesh has not as many devices.
        """
        wanted = target(named)
        mesh = mesh or usual_mesh(wanted)
        wanted.mesh(mesh)
        if isinstance(model, published.Case):
            model = replace(model, mesh=(wanted.hosts, wanted.devices_per_host))
        return cls(model, named, mesh)

    @property
    def products_in(self) -> str:
        """The type in which the model's products are made, as the rates of chips name it."""
        return self.model.products_in if isinstance(self.model, Sized) else _PRODUCTS_IN[self.model.suite]

    @property
    def suite(self) -> str:
        """The suite of a published model; of another one the model."""
        return self.model.model if isinstance(self.model, Sized) else self.model.suite

    @property
    def name(self) -> str:
        """What a published model is called in its suite; "" of another one."""
        return "" if isinstance(self.model, Sized) else self.model.name

    def step(self, *, remat: bool = True) -> Step:
        """The training step.

        Args:
            remat: Whether layers of a published model are computed again in the backward pass; others never are.
        """
        if isinstance(self.model, Sized):
            return _sized_step(self.model)
        # Flax and alpa's models take a second to import.
        from alpa_cfp_bench.workloads.published_programs import program_of

        program = program_of(self.model, remat=remat)
        return Step(program.step, program.state, program.batch, program.parameters)

    def __str__(self) -> str:
        model = f"{self.suite} {self.name}".rstrip()
        return f"{model} on {target(self.target).name} as {quantities.shape(self.mesh)}"


def usual_mesh(wanted: Target) -> tuple[int, ...]:
    """The mesh that one thinks of first: hosts by devices of GPUs, the torus of TPUs if it has two dims."""
    sizes = (wanted.hosts, wanted.devices_per_host) if wanted.torus is None else wanted.torus
    shape = tuple(size for size in sizes if size > 1)
    return shape if len(shape) in (1, 2) else (prod(shape),)


def _sized_step(sized: Sized) -> Step:
    from alpa_cfp_bench.workloads.model import training_step
    from alpa_cfp_bench.workloads.models import abstract

    model = abstract(sized.model, sized.size)
    parameters = sum(prod(leaf.shape) for leaf in jax.tree.leaves(model.state.params))
    return Step(training_step(model, jax.value_and_grad), model.state, model.batch, parameters)
