"""Arrays from one process to another, by tag: what pipelines need between meshes.

A group is made in two steps, because an address is known only once it is listened on: each process makes a `Listener`,
somebody tells every process the addresses of all of them (and a token), and each process then opens its end:

    listener = transport.Listener("10.0.0.7")
    endpoint = listener.open(rank, addresses, token)        # when all addresses are known
    endpoint.send("activations/3", array, to=1)
    array = endpoint.recv("gradients/3", (64, 1024), "bfloat16", 1)

Processes of one machine use Unix sockets, others TCP. Knows nothing of alpa or Ray.

Invariants: arrays with different tags may be received in any order; those with the same tag, from one rank to another,
are received in the order in which they were sent. Every wait ends after a limit.
"""

from alpa_on_jax.ray_mesh.transport.endpoint import Endpoint
from alpa_on_jax.ray_mesh.transport.errors import (
    ArrayMismatchError,
    ArrayTypeError,
    PeerLostError,
    RankError,
    TokenError,
    TransportError,
    TransportTimeoutError,
)
from alpa_on_jax.ray_mesh.transport.limits import Limits
from alpa_on_jax.ray_mesh.transport.opening import Address, Listener, new_token

__all__ = [
    "Address",
    "ArrayMismatchError",
    "ArrayTypeError",
    "Endpoint",
    "Limits",
    "Listener",
    "PeerLostError",
    "RankError",
    "TokenError",
    "TransportError",
    "TransportTimeoutError",
    "new_token",
]
