"""Arrays from one process to another, by tag: what pipelines need between meshes.

`best` chooses how. Each process makes a listener, all addresses are told to all processes, and each then opens its end:

    listener = transport.best("10.0.0.7")
    endpoint = listener.open(rank, addresses, token)        # when all addresses are known
    endpoint.send("activations/3", array, to=1)
    array = endpoint.recv("gradients/3", (64, 1024), "bfloat16", 1)

Knows nothing of alpa or Ray. `interface` says what every transport does, `tcp` works everywhere, `nccl` between GPUs.
"""

from alpa_on_jax.ray_mesh.transport.choosing import best
from alpa_on_jax.ray_mesh.transport.errors import (
    ArrayMismatchError,
    ArrayTypeError,
    DestinationError,
    PeerLostError,
    RankError,
    TokenError,
    TransportError,
    TransportTimeoutError,
)
from alpa_on_jax.ray_mesh.transport.interface import Address, Endpoint, Limits, Listener, new_token

__all__ = [
    "Address",
    "ArrayMismatchError",
    "ArrayTypeError",
    "DestinationError",
    "Endpoint",
    "Limits",
    "Listener",
    "PeerLostError",
    "RankError",
    "TokenError",
    "TransportError",
    "TransportTimeoutError",
    "best",
    "new_token",
]
