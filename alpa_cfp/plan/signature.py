"""What a plan keeps of the function that it was made for: its arguments and results, and where each of them lies.

Takes what `planning` found; gives JSON values and back. Invariant: equal signatures give equal JSON values, and what is
read back is an equal signature. Nothing here imports jax before a `PartitionSpec` is asked for.
"""

from dataclasses import dataclass
from typing import Any

Dims = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Placed:
    """One argument or result.

    Attributes:
        path: Where it is in the pytree: "args[0].params['w']", "kwargs['rate']", "result[1]".
        shape: Its shape.
        dtype: The name of its dtype.
        dims: For each dim the mesh axes that split it, major to minor.
        donated: Whether a result may take its buffer.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    dims: Dims
    donated: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """The arguments and results of a planned function on its mesh.

    Attributes:
        axis_names: The names of the mesh's axes.
        axis_types: How jax treats each: "Auto", "Explicit" or "Manual".
        devices: The ids of the mesh's devices, in its order; empty for a mesh without devices.
        inputs: The leaves of `(args, kwargs)`.
        outputs: The leaves of the result.
    """

    axis_names: tuple[str, ...]
    axis_types: tuple[str, ...]
    devices: tuple[int, ...]
    inputs: tuple[Placed, ...]
    outputs: tuple[Placed, ...]

    def to_content(self) -> dict[str, Any]:
        """As values that JSON has."""
        return {
            "axis_names": list(self.axis_names),
            "axis_types": list(self.axis_types),
            "devices": list(self.devices),
            "inputs": [_placed_content(each) for each in self.inputs],
            "outputs": [_placed_content(each) for each in self.outputs],
        }

    @classmethod
    def from_content(cls, content: Any) -> "Signature":
        """What `to_content` gave.

        Raises:
            KeyError, TypeError: it is something else.
        """
        return cls(
            axis_names=_texts(content["axis_names"]),
            axis_types=_texts(content["axis_types"]),
            devices=_wholes(content["devices"]),
            inputs=tuple(map(_placed, content["inputs"])),
            outputs=tuple(map(_placed, content["outputs"])),
        )


def _placed_content(placed: Placed) -> dict[str, Any]:
    return {
        "path": placed.path,
        "shape": list(placed.shape),
        "dtype": placed.dtype,
        "dims": [list(names) for names in placed.dims],
        "donated": placed.donated,
    }


def _placed(content: Any) -> Placed:
    if not isinstance(content["donated"], bool):
        raise TypeError(f"{content['donated']!r} is neither true nor false")
    dims = tuple(_texts(names) for names in content["dims"])
    (path, dtype) = _texts([content["path"], content["dtype"]])
    return Placed(path, _wholes(content["shape"]), dtype, dims, content["donated"])


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise TypeError(f"{values!r} is no list of texts")
    return tuple(values)


def _wholes(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(isinstance(each, int) and not isinstance(each, bool) for each in values):
        raise TypeError(f"{values!r} is no list of whole numbers")
    return tuple(values)
