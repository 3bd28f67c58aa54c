"""`HloModule`: the program value that alpa passes around, compiles, and sends to other processes.

It stands for the forked jaxlib's `xla_extension.HloModule`. Inside is StableHLO with one function and no calls, what
is known of its inputs' and outputs' shardings, and which inputs may be reused for outputs. Its
`as_serialized_hlo_module_proto` gives bytes that any process with the same jaxlib turns back into an equal value.
"""

import pickle
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from jaxlib import xla_client as xc
from jaxlib.mlir import ir

from alpa_cfp.spmd import errors
from alpa_cfp.spmd.ir import mlir
from alpa_cfp.spmd.ir.builders import numpy_dtype
from alpa_cfp.spmd.ir.lowered_form import normalize
from alpa_cfp.spmd.ir.mlir import Value
from alpa_cfp.spmd.ir.shapes import ProgramShape, Shape
from alpa_cfp.spmd.module.combiner_limits import CombinerLimits
from alpa_cfp.spmd.shardings.sharding import ArraySharding, LogicalMesh, tuple_proto

if TYPE_CHECKING:
    from alpa_cfp.spmd.compile.phases import Phase
    from alpa_cfp.spmd.module.partitioned import PartitionedProgram


@dataclass(frozen=True, slots=True)
class HloSharding:
    """An array's sharding (or a tuple of them): an `OpSharding`, which may be given as its bytes."""

    proto: Any

    def __post_init__(self) -> None:
        if isinstance(self.proto, bytes):
            proto = xc.OpSharding()
            proto.ParseFromString(self.proto)
            object.__setattr__(self, "proto", proto)

    def to_proto(self) -> Any:
        return self.proto


@dataclass
class HloModule:
    """A program, in any of alpa's states from unoptimised to partitioned.

    Attributes:
        name: The module's name.
        bytecode: StableHLO, `main` only, calls inlined; after auto-sharding with Shardy's annotations on every op.
        shape: Global parameter and result shapes.
        donated: For each parameter whether its buffer may be reused for a result.
        aliases: Pairs (result, parameter) that must share a buffer, where alpa has set them.
        input_protos, output_protos: What alpa has set (`OpSharding`s, serialized), or None.
        mesh: The logical mesh; None until auto-sharding.
        input_shardings, output_shardings: What auto-sharding decided; None before.
        fixed_outputs: Results whose sharding the user has set, so that an alias must not change it.
        solved: Whether auto-sharding wrote a sharding on every op, so that its communication is decided.
        propagated: Whether sharding propagation has run on it as it is annotated now: once more would change nothing.
        combiner_limits: Size limits of combined collectives in a solved program.
        partitioned: The per-device program, once it has been made.
        phases: Instead of that, where the program needs what other meshes compute: its phases (see `phases`), each
            with its own per-device program.
    """

    name: str
    bytecode: bytes
    shape: ProgramShape
    donated: tuple[bool, ...] = ()
    aliases: tuple[tuple[int, int], ...] = ()
    input_protos: tuple[bytes, ...] | None = None
    output_protos: tuple[bytes, ...] | None = None
    mesh: LogicalMesh | None = None
    input_shardings: tuple[ArraySharding, ...] | None = None
    output_shardings: tuple[ArraySharding, ...] | None = None
    fixed_outputs: frozenset[int] = frozenset()
    solved: bool = False
    propagated: bool = False
    combiner_limits: CombinerLimits = field(default_factory=CombinerLimits)
    partitioned: "PartitionedProgram | None" = field(default=None, repr=False)
    phases: "tuple[Phase, ...]" = field(default=(), repr=False)

    def become(self, other: "HloModule") -> None:
        """Take over all fields of `other`: alpa's passes change the module that they are given."""
        for each in fields(self):
            setattr(self, each.name, getattr(other, each.name))

    @classmethod
    def from_stablehlo(cls, name: str, module: bytes | str, donated: Sequence[bool] = ()) -> "HloModule":
        """Make the value from lowered StableHLO (text or bytecode).

        Raises:
            HostCallbackError: the program calls back into Python. XLA finds the Python function only in the process and
                the call that traced it, and would crash.
        """
        with mlir.context():
            parsed = mlir.parse(module)
            if callbacks := mlir.host_callbacks(parsed):
                raise errors.HostCallbackError(name, callbacks)
            normalize(parsed)
            main = mlir.main_function(parsed)
            shape = program_shape(mlir.entry_block(main).arguments, mlir.terminator(main).operands)
            bytecode = mlir.to_bytecode(parsed)
        return cls(name, bytecode, shape, tuple(bool(d) for d in donated) or (False,) * len(shape.parameters))

    def program_shape(self) -> ProgramShape:
        return self.shape

    def parameter_shapes(self) -> list[Shape]:
        return list(self.shape.parameters)

    def to_string(self) -> str:
        """StableHLO text: of the per-device program where there is one, else of the annotated or plain program."""
        if self.phases:
            return "\n".join(phase.with_exchanges(phase.module.to_string()) for phase in self.phases)
        with mlir.context():
            return mlir.to_text(mlir.parse((self.partitioned or self).bytecode))

    def setup_alias(self, output_index: Sequence[int], parameter: int, parameter_index: Sequence[int]) -> None:
        """Let result `output_index` reuse the buffer of `parameter`; both then have the parameter's sharding."""
        del parameter_index  # parameters are never tuples here
        (result,) = output_index
        self.aliases = (*self.aliases, (int(result), int(parameter)))
        if self.input_shardings is None or self.output_shardings is None or result in self.fixed_outputs:
            return
        outputs = list(self.output_shardings)
        outputs[result] = self.input_shardings[parameter]
        self.output_shardings = tuple(outputs)

    def spmd_parameters_shardings(self) -> list[HloSharding]:
        return [HloSharding(s.to_proto()) for s in self._known(self.input_shardings)]

    def spmd_output_sharding(self) -> HloSharding:
        return HloSharding(tuple_proto(self._known(self.output_shardings)))

    def infer_spmd_shardings(self) -> None:
        """Nothing: the shardings of parameters and results are known since auto-sharding."""

    def set_spmd_parameters_shardings(self, shardings: Sequence[HloSharding]) -> None:
        """Check the shardings that alpa sets on a partitioned module from another process: those that it has already.

        Raises:
            errors.InternalError: they are others.
        """
        self._require_same(shardings, self.spmd_parameters_shardings(), "parameters")

    def set_spmd_output_sharding(self, sharding: HloSharding) -> None:
        """As `set_spmd_parameters_shardings`, with one sharding, a tuple, of the results.

        Raises:
            errors.InternalError: it is another.
        """
        self._require_same([sharding], [self.spmd_output_sharding()], "results")

    def _require_same(self, given: Sequence[HloSharding], own: Sequence[HloSharding], what: str) -> None:
        given_bytes, own_bytes = ([each.to_proto().SerializeToString() for each in all_] for all_ in (given, own))
        if given_bytes != own_bytes:
            raise errors.InternalError(f"{self.name} was partitioned for other shardings of its {what}")

    def as_serialized_hlo_module_proto(self) -> bytes:
        """Bytes from which `XlaComputation(...).get_hlo_module()` makes an equal value in another process."""
        return pickle.dumps({name: getattr(self, name) for name in self.__dataclass_fields__})

    @classmethod
    def from_serialized(cls, data: bytes) -> "HloModule":
        return cls(**pickle.loads(data))

    def copy(self) -> "HloModule":
        return replace(self)

    @staticmethod
    def _known(shardings: tuple[ArraySharding, ...] | None) -> tuple[ArraySharding, ...]:
        if shardings is None:
            raise ValueError("the module has no shardings yet: run the auto-sharding pass on it first")
        return shardings


class XlaComputation:
    """A serialized `HloModule`, as alpa's `WrappedHlo` and executables take it."""

    def __init__(self, serialized: bytes | HloModule):
        self._module = serialized if isinstance(serialized, HloModule) else HloModule.from_serialized(serialized)

    def get_hlo_module(self) -> HloModule:
        return self._module

    def as_hlo_module(self) -> HloModule:
        return self._module

    def program_shape(self) -> ProgramShape:
        return self._module.shape


def set_hlo_module_input_shardings(module: HloModule, protos: Sequence[Any]) -> None:
    """Set the `OpSharding` of every parameter (type MANUAL: undefined)."""
    module.input_protos = tuple(proto.SerializeToString() for proto in protos)


def set_hlo_module_output_shardings(module: HloModule, protos: Sequence[Any]) -> None:
    """Set the `OpSharding` of every result (type MANUAL: undefined)."""
    module.output_protos = tuple(proto.SerializeToString() for proto in protos)


def array_shape(mlir_type: Any) -> Shape:
    """The `Shape` of a ranked tensor type."""
    tensor = ir.RankedTensorType(mlir_type)
    return Shape(tuple(tensor.shape), numpy_dtype(tensor.element_type))


def program_shape(parameters: Iterable[Value], results: Iterable[Value]) -> ProgramShape:
    """The shapes of a program with these parameters and results."""
    return ProgramShape(*(tuple(array_shape(value.type) for value in values) for values in (parameters, results)))
