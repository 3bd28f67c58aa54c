"""Small programs drawn at random, and how far rounding may take two runs of one apart.

Takes hypothesis' `draw` and a table of kinds of ops (drawn_ops.py); gives a `Program`: Python text, so that a failure
shows what to paste. Invariants: all arguments are small whole numbers; of each value is known the largest magnitude
that it can have (`bound`) and the largest difference between two right runs (`error`). The error is 0 for integers and
booleans, and for floats as long as all of an op's results are whole numbers that its dtype holds, partial sums
included: those runs must agree to the bit, and only such values are compared, rounded, sorted by or used as numbers.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax import lax
from jax.scipy import special

DTYPES = ("float32", "bfloat16", "float16", "int8", "uint8", "int32", "bool", "complex64")
# Primes, 1 and, seldom, 0 among sizes that meshes of 2 to 8 devices divide.
SIZES = (8, 4, 16, 2, 1, 3, 5, 7, 12, 8, 4, 16, 8, 4, 2, 13, 6, 0)
MOST_ELEMENTS = 2048
# Whole numbers up to 2**_DIGITS are exact. Each run rounds by half a unit in the last place, so two differ by one.
_DIGITS = {"float32": 24, "complex64": 24, "float16": 11, "bfloat16": 8}
# Beyond these magnitudes nothing is drawn: float16 ends at 65,504, and differences grow with what they come from.
LIMIT = {"float32": 1e6, "bfloat16": 1e6, "float16": 2e4, "complex64": 1e4}
# A value of which less is known than this, relative to its bound, is not drawn: the comparison would show nothing.
_LARGEST_RELATIVE_ERROR = 0.03
_INPUT_BOUND = 4

_NAMES = {"jax": jax, "jnp": jnp, "lax": lax, "np": np, "special": special}


@dataclass(frozen=True, slots=True)
class Value:
    """An array of a program; its text is its name."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bound: float
    error: float = 0.0

    def __str__(self) -> str:
        return self.name

    @property
    def kind(self) -> str:
        """numpy's letter: f, i, u, b or c."""
        return "f" if self.dtype == "bfloat16" else np.dtype(self.dtype).kind

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def struct(self) -> jax.ShapeDtypeStruct:
        """As jax takes it for its shape and dtype."""
        return jax.ShapeDtypeStruct(self.shape, jnp.dtype(self.dtype))


@dataclass(frozen=True)
class Program:
    """A drawn program.

    Attributes:
        inputs: Its arguments.
        steps: For each step the kind of op, the name of the value that it gives, and its expression.
        results: What it returns: each value that nothing else uses.
    """

    inputs: tuple[Value, ...]
    steps: tuple[tuple[str, str, str], ...]
    results: tuple[Value, ...]

    def __str__(self) -> str:
        """The program as the text of a Python function."""
        arguments = ", ".join(f"{x}: '{x.dtype}{list(x.shape)}'" for x in self.inputs)
        lines = [f"{name} = {text}" for _, name, text in self.steps]
        returned = "".join(f"{result}, " for result in self.results)
        return f"def program({arguments}):\n    " + "\n    ".join([*lines, f"return {returned}"])

    __repr__ = __str__

    @property
    def kinds(self) -> list[str]:
        """The kinds of its ops."""
        return [kind for kind, _, _ in self.steps]

    def function(self) -> Callable[..., tuple[jax.Array, ...]]:
        """The program to be called."""
        names: dict[str, Any] = dict(_NAMES)
        exec(str(self), names)
        return names["program"]

    def arguments(self) -> list[np.ndarray]:
        """Small whole numbers, the same ones for the same program."""
        return [_whole_numbers(number, value) for number, value in enumerate(self.inputs)]


def _whole_numbers(seed: int, value: Value) -> np.ndarray:
    rng = np.random.default_rng(seed)
    low, bound = (0 if value.kind in "ub" else -_INPUT_BOUND), (1 if value.kind == "b" else _INPUT_BOUND)
    numbers = rng.integers(low, bound + 1, value.shape)
    if value.kind == "c":
        numbers = numbers + 1j * rng.integers(low, bound + 1, value.shape)
    return numbers.astype(jnp.dtype(value.dtype))


class NotDrawn(Exception):
    """A kind of op has nothing to work on, or its result would be too large or too uncertain: another one is drawn."""


@dataclass
class Drawing:
    """A program in the making: kinds of ops take values from it and put new ones into it."""

    draw: st.DrawFn
    values: list[Value] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    steps: list[tuple[str, str, str]] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    kind: str = ""

    def choose(self, options: Sequence[Any]) -> Any:
        """One of `options`; the first is the simplest."""
        return self.draw(st.sampled_from(list(options)))

    def flag(self) -> bool:
        """True or False."""
        return self.draw(st.booleans())

    def number(self, low: int, high: int) -> int:
        """A number from `low` to `high`, both included."""
        return self.draw(st.integers(low, high))

    def dims(self, value: Value, least: int = 1) -> tuple[int, ...]:
        """Some dims of `value`, in order."""
        chosen = self.draw(st.sets(st.integers(0, value.rank - 1), min_size=least)) if value.rank else ()
        return tuple(sorted(chosen))

    def shape(self, low: int, high: int, *, empty: bool = False) -> tuple[int, ...]:
        """A shape of `low` to `high` dims and at most MOST_ELEMENTS."""
        shape: list[int] = []
        for _ in range(self.number(low, max(low, high))):
            room = MOST_ELEMENTS // max(1, math.prod(shape))
            shape.append(self.choose([size for size in SIZES if size <= room and (size or empty)]))
        return tuple(shape)

    def value(
        self, kinds: str = "f", low: int = 0, high: int = 4, *, exact: bool = False, empty: bool = False
    ) -> Value:
        """A value of a kind of dtype, with `low` to `high` dims: one that there is, or a new input.

        Args:
            kinds: numpy's letters of dtypes.
            low, high: The least and the most dims.
            exact: Whether its error must be 0.
            empty: Whether it may have no elements.
        """
        there = [
            value
            for value in reversed(self.values)
            if value.kind in kinds
            and low <= value.rank <= high
            and not (exact and value.error)
            and (empty or value.size)
            and value.size <= MOST_ELEMENTS
        ]
        if there and self.number(0, 4) < 4:
            return self.choose(there)
        dtypes = [dtype for dtype in DTYPES if Value("", (), dtype, 0).kind in kinds]
        return self.new_input(self.shape(max(low, 1) if high else 0, min(high, 3), empty=empty), self.choose(dtypes))

    def array(self, shape: Sequence[int], dtype: str, *, exact: bool = False) -> Value:
        """A value of this shape and dtype: one that there is, or a new input."""
        there = [
            value
            for value in reversed(self.values)
            if value.shape == tuple(shape) and value.dtype == dtype and not (exact and value.error)
        ]
        return self.choose(there) if there and self.flag() else self.new_input(tuple(shape), dtype)

    def new_input(self, shape: tuple[int, ...], dtype: str) -> Value:
        """A new argument of the program."""
        if math.prod(shape) > MOST_ELEMENTS:
            raise NotDrawn
        bound = 1 if dtype == "bool" else _INPUT_BOUND * (2 if dtype == "complex64" else 1)
        value = Value(f"x{len(self.inputs)}", shape, dtype, bound)
        self.inputs.append(value)
        self.values.append(value)
        return value

    def within(self, value: Value, limit: float) -> Value:
        """`value` with magnitudes up to `limit`, clipped where it has larger ones."""
        if value.bound <= limit:
            return value
        if value.kind == "c":
            return self.new_input(value.shape, value.dtype)
        limit = max(1, math.floor(limit))
        low = 0 if value.kind == "u" else -limit
        return self.put(f"jnp.clip({value}, {low}, {limit})", [value], limit, value.error)

    def put(
        self, text: str, of: Sequence[Value], bound: float = 1, error: float = 0, *, rounds: int = 1, whole: bool = True
    ) -> Value:
        """A new value: an expression of other values.

        Args:
            text: The expression.
            of: The values in it.
            bound: The largest magnitude of its elements; of integers that wrap around it does not matter.
            error: What the errors of `of` make of it.
            rounds: How often a result is rounded, one after the other.
            whole: Whether exact operands give whole numbers, and those partial results that are no larger than `bound`.

        Raises:
            NotDrawn: it would be too large or too uncertain.
        """
        made = self._made(text, of)
        dtype, shape = made.dtype.name, made.shape
        if math.prod(shape) > 2 * MOST_ELEMENTS:
            raise NotDrawn
        if dtype in _DIGITS:
            is_exact = whole and error == 0 and bound <= 2 ** _DIGITS[dtype]
            error = 0 if is_exact else error + rounds * bound * 2.0 ** (1 - _DIGITS[dtype])
            if bound > LIMIT[dtype] or error > _LARGEST_RELATIVE_ERROR * bound:
                raise NotDrawn
        else:
            if error:
                raise ValueError(f"{text}: integers and booleans are made of exact values only")
            bound = 1 if dtype == "bool" else _in_range(bound, np.iinfo(dtype))
        value = Value(f"v{len(self.steps)}", tuple(shape), dtype, float(bound), float(error))
        self.steps.append((self.kind, value.name, text))
        self.values.append(value)
        self.used.update(map(str, of))
        return value

    def shape_of(self, text: str, *of: Value) -> tuple[int, ...]:
        """The shape of an expression of other values."""
        return self._made(text, of).shape

    def _made(self, text: str, of: Sequence[Value]) -> jax.ShapeDtypeStruct:
        structs = {value.name: value.struct() for value in of}
        function = eval(f"lambda {', '.join(structs)}: {text}", dict(_NAMES))
        return jax.eval_shape(function, **structs)

    def program(self) -> Program:
        """What was drawn; arguments that nothing uses are left out."""
        results = [value for value in self.values if value.name not in self.used and value not in self.inputs]
        inputs = [value for value in self.inputs if value.name in self.used]
        return Program(tuple(inputs), tuple(self.steps), tuple(results))


def _in_range(bound: float, info: Any) -> float:
    """The largest magnitude of integers that wrap around."""
    return bound if bound <= info.max else float(max(info.max, -info.min))


def programs(kinds: dict[str, Callable[[Drawing], None]], first: Sequence[str] = ()) -> st.SearchStrategy[Program]:
    """Programs of two to eight ops.

    Args:
        kinds: By name, what puts a kind of op into a `Drawing`.
        first: The names of those that a program may begin with; empty for all.
    """

    @st.composite
    def drawn(draw: st.DrawFn) -> Program:
        drawing = Drawing(draw)
        for number in range(draw(st.integers(2, 8))):
            _put_one(drawing, kinds, list(first) if first and not number else list(kinds))
        return drawing.program()

    return drawn()


def _put_one(drawing: Drawing, kinds: dict[str, Callable[[Drawing], None]], names: list[str]) -> None:
    for _ in range(10):
        drawing.kind = drawing.choose(names)
        before = len(drawing.steps)
        try:
            kinds[drawing.kind](drawing)
            return
        except NotDrawn:
            if len(drawing.steps) > before:
                return  # what it was to work on is something, too
    drawing.kind = "negate"
    drawing.put("-{}".format(x := drawing.value("f")), [x], x.bound, x.error)
