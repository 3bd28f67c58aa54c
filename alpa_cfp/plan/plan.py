"""A plan: the decisions of CFP for one program on one mesh, as a value that can be saved and used again.

Invariant: equal plans have equal JSON texts, byte for byte, and a text that is read back gives an equal plan.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alpa_cfp import codec
from alpa_cfp.errors import PlanError
from alpa_cfp.lazily import call
from alpa_cfp.plan.plan_report import PlanReport
from alpa_cfp.plan.signature import Placed, Signature
from alpa_cfp.search import MemoryUse
from alpa_cfp.strategies.block_strategy import BlockStrategy

if TYPE_CHECKING:
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from alpa_cfp.jit.plan_shardings import PlanShardings
    from alpa_cfp.jit.planned_function import PlannedFunction

FORMAT = 4
# Imported by methods of `Plan` when they are called, because it imports this module.
_JIT = "alpa_cfp.jit.planned_function"
# Placeholder of the plan report in a text.
_ACCOUNT = "@"


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan.

    Attributes:
        program: Digest of the program that it is for.
        mesh_shape: The logical mesh that it is for.
        strategies: One for each block, in program order.
        predicted_s: Predicted time of a step, in seconds.
        memory: Predicted memory of a device, in bytes.
        costs: Source of the predictions: "measure", "compile", "replay" or "estimate".
        signature: The arguments and results of the function with their shardings; None for a plan that was made
            through alpa.
        measured_s: Measured time of a step of the whole program, in seconds; modelled if costs are "compile"; None if
            it was not run, or compiled.
        needed_bytes: Memory of a device by the compiled program; None if it was not compiled.
        account: The plan report: why it is this plan, and the costs of its parts; None for a plan that was written by
            hand.
    """

    program: str
    mesh_shape: tuple[int, ...]
    strategies: tuple[BlockStrategy, ...]
    predicted_s: float
    memory: MemoryUse
    costs: str
    signature: Signature | None = None
    measured_s: float | None = None
    needed_bytes: int | None = None
    account: PlanReport | None = None

    @property
    def in_shardings(self) -> dict[str, "PartitionSpec"]:
        """Sharding of each argument by its path: `{"args[0].params['w']": P(None, 'x')}`; empty without signature."""
        return _specs(self.signature.inputs if self.signature else ())

    @property
    def out_shardings(self) -> dict[str, "PartitionSpec"]:
        """Sharding of each result by its path: `{"result[1]": P()}`; empty without signature."""
        return _specs(self.signature.outputs if self.signature else ())

    def named_shardings(self, mesh: "Mesh | None" = None) -> dict[str, "NamedSharding"]:
        """Sharding of each argument and each result on `mesh`, by path.

        Args:
            mesh: The mesh; None for the one that the plan was made on.

        Raises:
            PlanError: the plan was made through alpa, or on devices that this process does not have.
        """
        from jax.sharding import NamedSharding

        if self.signature is None:
            raise PlanError.without_signature()
        on: Mesh = call("alpa_cfp.jit.matching", "mesh_of", self, self.signature) if mesh is None else mesh
        return {path: NamedSharding(on, spec) for path, spec in (self.in_shardings | self.out_shardings).items()}

    def shardings(
        self, fn: Callable[..., Any], /, *args: Any, mesh: "Mesh | None" = None, **kwargs: Any
    ) -> "PlanShardings":
        """Returns the shardings of arguments and results as pytrees, for plain JAX.

        `jax.jit(fn, in_shardings=of.args, out_shardings=of.result)`, `jax.device_put(batch, of.args[1])`,
        `jax.jit(init, out_shardings=of.args[0])`. Nothing is compiled. Plain `jax.jit` gets the shardings of arguments
        and results only, and XLA decides what is between them: `Plan.jit` runs the whole plan.

        Args:
            fn: The function that the plan was made for. It is traced for the structure of its result.
            args: Its arguments; shapes are enough.
            mesh: The mesh, of the same shape and axis names, with the axis types that it has; None for the one that
                the plan was made on, with the axis types of `jax.set_mesh`, or else automatic ones.
            kwargs: As `args`.

        Raises:
            PlanError: the plan was made through alpa, for another mesh, for other arguments or another function, or on
                devices that this process does not have.
        """
        return call("alpa_cfp.jit.plan_shardings", "shardings_of", self, fn, mesh, args, kwargs)

    def jit(self, fn: Callable[..., Any], mesh: "Mesh | None" = None) -> "PlannedFunction":
        """Returns `fn` as planned. It is called like `jax.jit(fn)`; arguments may have any sharding.

        Args:
            fn: The function that the plan was made for.
            mesh: The mesh to run on, of the same shape and axis names; None for the one that the plan was made on.

        Raises:
            PlanError: the plan was made through alpa, for another mesh, or on devices that this process does not have.
        """
        return call(_JIT, "PlannedFunction", fn, self, mesh)

    def explain(self) -> str:
        """Explains the plan as text: each block's strategy and why, the costs, the other plans that were tried.

        `print(plan.explain())`; as a command `alpa-cfp explain PLAN`.
        """
        return call("alpa_cfp.report.text", "explain", self)

    def diff(self, other: "Plan") -> str:
        """Compares `other` with this plan as text: the differences, and their costs.

        `print(plan.diff(other))`; as a command `alpa-cfp diff A B`.
        """
        return call("alpa_cfp.report.comparing", "diff", self, other)

    def report(self) -> str:
        """Returns the plan as one HTML page with drawings, to be written into a file."""
        return call("alpa_cfp.report.html_page", "html_page", self)

    def to_json(self) -> str:
        """Returns the plan as JSON."""
        content = codec.encode(self) | {"format": FORMAT}
        account = content["account"]
        if account is not None:
            content["account"] = _ACCOUNT
        text = json.dumps(content, indent=1, sort_keys=True) + "\n"
        if account is None:
            return text
        # On one line, because that of a deep model is long.
        line = json.dumps(account, separators=(",", ":"), sort_keys=True)
        return text.replace(f'"account": "{_ACCOUNT}"', f'"account": {line}', 1)

    @classmethod
    def from_json(cls, text: str, source: str = "the text") -> "Plan":
        """Reads a plan.

        Args:
            text: The result of `to_json`.
            source: Name of the text in errors.

        Raises:
            PlanError: the text is no plan of this format.
        """
        try:
            content = json.loads(text)
        except RecursionError as error:
            raise PlanError.unreadable(source, "it is nested too deeply") from error
        except ValueError as error:
            raise PlanError.unreadable(source, str(error)) from error
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise PlanError.unreadable(source, f"it has no format {FORMAT}")
        try:
            return codec.decode(cls, content)
        except (KeyError, TypeError, ValueError) as error:
            raise PlanError.unreadable(source, f"{type(error).__name__}: {error}") from error

    def save(self, path: Path | str) -> None:
        """Writes the plan into a file."""
        Path(path).write_text(self.to_json(), "utf-8")

    @classmethod
    def load(cls, path: Path | str) -> "Plan":
        """Reads the plan in a file.

        Raises:
            PlanError: the file holds no plan of this format.
            OSError: the file cannot be read.
        """
        try:
            text = Path(path).read_text("utf-8")
        except UnicodeDecodeError as error:
            raise PlanError.unreadable(str(path), "it is no text in UTF-8") from error
        return cls.from_json(text, str(path))


def _specs(placed: Sequence[Placed]) -> dict[str, "PartitionSpec"]:
    return {each.path: call("alpa_cfp.jit.meshes", "spec_of", each.dims) for each in placed}
