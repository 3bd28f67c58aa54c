"""`jax.experimental.maps`, of which alpa and its users need FrozenDict only."""

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["FrozenDict"]


class FrozenDict(Mapping):
    """A mapping that cannot be changed and can be hashed. No pytree: alpa freezes static arguments with it.

    It equals another FrozenDict with equal items in any order, and no other mapping.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.contents = dict(*args, **kwargs)

    def __getitem__(self, name: Any) -> Any:
        return self.contents[name]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.contents)

    def __len__(self) -> int:
        return len(self.contents)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrozenDict) and self.contents == other.contents

    def __hash__(self) -> int:
        return hash(frozenset(self.contents.items()))

    def __repr__(self) -> str:
        return f"FrozenDict({self.contents})"
