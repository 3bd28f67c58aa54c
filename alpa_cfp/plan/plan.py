"""A plan: what CFP decided for one program on one mesh, as a value that can be kept and used again.

Takes what the search found; gives JSON and back. Invariant: equal plans are equal texts, byte for byte, and a text that
is read back is an equal plan.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from alpa_cfp.errors import PlanError
from alpa_cfp.lazily import call
from alpa_cfp.plan import codec
from alpa_cfp.plan.plan_report import PlanReport
from alpa_cfp.plan.signature import Placed, Signature
from alpa_cfp.search import MemoryUse
from alpa_cfp.strategies.block_strategy import BlockStrategy, StateSharding

if TYPE_CHECKING:
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from alpa_cfp.jit.planned_function import PlannedFunction

FORMAT = 4
# Where functions on plans are that the methods of `Plan` hand on to; they build on this module.
_JIT = "alpa_cfp.jit.planned_function"
# Stands for the account in a text.
_ACCOUNT = "@"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan.

    Attributes:
        program: Digest of the program that it is for.
        mesh_shape: The logical mesh that it is for.
        strategies: One for each block, in program order.
        predicted_s: What a step was predicted to take, in seconds.
        memory: What a device was predicted to need, in bytes.
        costs: Where the prediction came from: "measure", "replay" or "estimate".
        signature: The arguments and results of the function, and where they lie, of a plan that `autoshard` made;
            None of one that was made through alpa.
        measured_s: What a step took when it was compiled whole; None where it was not.
        needed_bytes: What a device needs by the program that was compiled whole; None where none was.
        account: Why it is this plan, and what it costs where; None of one that was written by hand.
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
        """Where each argument lies, by its path: `{"args[0].params['w']": P(None, 'x')}`; empty without signature."""
        return _specs(self.signature.inputs if self.signature else ())

    @property
    def out_shardings(self) -> dict[str, "PartitionSpec"]:
        """Where each result lies, by its path: `{"result[1]": P()}`; empty without signature."""
        return _specs(self.signature.outputs if self.signature else ())

    def named_shardings(self, mesh: "Mesh | None" = None) -> dict[str, "NamedSharding"]:
        """Where each argument and each result lies on `mesh`, by path; without it on the mesh that it was made on.

        Raises:
            PlanError: the plan was made through alpa, or on devices that this process does not have.
        """
        from jax.sharding import NamedSharding

        if self.signature is None:
            raise PlanError.without_signature()
        on: Mesh = call(_JIT, "mesh_of", self, self.signature) if mesh is None else mesh
        return {path: NamedSharding(on, spec) for path, spec in (self.in_shardings | self.out_shardings).items()}

    def jit(self, fn: Callable[..., Any], mesh: "Mesh | None" = None) -> "PlannedFunction":
        """`fn` as planned: to be called like `jax.jit(fn)`, with arguments that lie anywhere.

        Args:
            fn: The function that the plan was made for.
            mesh: Where it runs: a mesh of the same shape and axis names; None for the devices that it was made on.

        Raises:
            PlanError: the plan was made through alpa, for another mesh, or on devices that this process does not have.
        """
        return call(_JIT, "PlannedFunction", fn, self, mesh)

    def explain(self) -> str:
        """The plan in words: what each block does and why, where the time and the memory go, what was tried beside it.

        `print(plan.explain())`; as a command `alpa-cfp explain PLAN`.
        """
        return call("alpa_cfp.report.text", "explain", self)

    def diff(self, other: "Plan") -> str:
        """In words what `other` does otherwise, and what that costs.

        `print(plan.diff(other))`; as a command `alpa-cfp diff A B`.
        """
        return call("alpa_cfp.report.comparing", "diff", self, other)

    def report(self) -> str:
        """The plan as one HTML page, with its pictures, to be written into a file."""
        return call("alpa_cfp.report.report", "report", self)

    def to_json(self) -> str:
        """The plan as text."""
        content = {
            "format": FORMAT,
            "program": self.program,
            "mesh_shape": list(self.mesh_shape),
            "strategies": [{"factors": list(each.factors), "kept": each.state_sharding} for each in self.strategies],
            "predicted_s": self.predicted_s,
            "memory": asdict(self.memory),
            "costs": self.costs,
            "signature": None if self.signature is None else self.signature.to_content(),
            "measured_s": self.measured_s,
            "needed_bytes": self.needed_bytes,
            "account": None if self.account is None else _ACCOUNT,
        }
        text = json.dumps(content, indent=1, sort_keys=True) + "\n"
        if self.account is None:
            return text
        # In one line: of a deep model it is long.
        account = json.dumps(codec.to_content(self.account), separators=(",", ":"), sort_keys=True)
        return text.replace(f'"account": "{_ACCOUNT}"', f'"account": {account}', 1)

    @classmethod
    def from_json(cls, text: str, source: str = "the text") -> "Plan":
        """The plan that `to_json` gave.

        Args:
            text: What `to_json` gave.
            source: Where it comes from, for errors.

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
            return cls(
                program=_text(content["program"]),
                mesh_shape=tuple(map(_whole, content["mesh_shape"])),
                strategies=tuple(map(_strategy, content["strategies"])),
                predicted_s=float(content["predicted_s"]),
                memory=MemoryUse(**{name: _whole(size) for name, size in content["memory"].items()}),
                costs=_text(content["costs"]),
                signature=_optional(Signature.from_content, content["signature"]),
                measured_s=_optional(float, content["measured_s"]),
                needed_bytes=_optional(_whole, content["needed_bytes"]),
                account=_optional(codec.from_content, content["account"]),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise PlanError.unreadable(source, f"{type(error).__name__}: {error}") from error

    def save(self, path: Path | str) -> None:
        """Write the plan into a file."""
        Path(path).write_text(self.to_json(), "utf-8")

    @classmethod
    def load(cls, path: Path | str) -> "Plan":
        """The plan in a file.

        Raises:
            PlanError: there is no plan of this format in it.
            OSError: it cannot be read.
        """
        try:
            text = Path(path).read_text("utf-8")
        except UnicodeDecodeError as error:
            raise PlanError.unreadable(str(path), "it is no text in UTF-8") from error
        return cls.from_json(text, str(path))


def _specs(placed: Sequence[Placed]) -> dict[str, "PartitionSpec"]:
    return {each.path: call("alpa_cfp.jit.meshes", "spec_of", each.dims) for each in placed}


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no whole number")
    return value


def _strategy(value: Any) -> BlockStrategy:
    return BlockStrategy(tuple(_optional(_whole, factor) for factor in value["factors"]), StateSharding(value["kept"]))


def _optional(read: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else read(value)
