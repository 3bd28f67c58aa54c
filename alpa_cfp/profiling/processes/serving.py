"""All processes but the first one of those that plan together: each measures what the first one wants, until it has a
plan.

Takes the connection to the first process; gives what that sends at last. Invariant: when it ends, however it does, the
process measures nothing any more.
"""

import threading
from dataclasses import dataclass
from typing import Protocol

from alpa_cfp.errors import CFPError
from alpa_cfp.profiling.meshes.hosts import Host, HostLostError
from alpa_cfp.profiling.options import MeasureOptions
from alpa_cfp.profiling.process.protocol import Setup
from alpa_cfp.profiling.processes.hosts import Call, EndHost, Returned
from alpa_cfp.profiling.processes.peers import Peer, PeerLostError

_CHECK_S = 0.5


@dataclass(frozen=True, slots=True)
class MakeHost:
    """The first process is going to measure.

    Attributes:
        options: How.
    """

    options: MeasureOptions


@dataclass(frozen=True, slots=True)
class Planned:
    """The plan is made.

    Attributes:
        plan: Its JSON.
    """

    plan: str


class MakesHosts(Protocol):
    """Makes the host of this process."""

    def __call__(self, options: MeasureOptions) -> Host: ...


def serve(first: Peer, make: MakesHosts) -> str:
    """Does what the first process wants; returns the JSON of its plan.

    Args:
        first: The connection to it.
        make: Makes the host of this process.

    Raises:
        PeerLostError: it is lost, or has failed.
    """
    host: Host | None = None
    call: threading.Thread | None = None
    try:
        while True:
            match first.receive():
                case Planned(plan):
                    return plan
                case MakeHost(options):
                    _end(host, call)
                    host = make(options)
                case EndHost():
                    _end(host, call)
                case Call() as wanted if host is not None:
                    call = threading.Thread(target=_answer, args=(first, host, wanted), daemon=True)
                    call.start()
                case _:
                    pass
    finally:
        _end(host, call)


def _end(host: Host | None, call: threading.Thread | None) -> None:
    """End what the host does, and wait until the call of it is over."""
    if host is not None:
        host.end()
        # Again, since the call may just have been beginning.
        while call is not None and call.is_alive():
            host.end()
            call.join(_CHECK_S)


def _answer(first: Peer, host: Host, call: Call) -> None:
    error = None
    try:
        if isinstance(call.request, Setup):
            host.start(call.request)
        else:
            for event in host.do(call.request):
                first.send(call.channel, event)
    except PeerLostError:
        return
    except (CFPError, HostLostError) as raised:
        error = raised
    except Exception as raised:  # noqa: BLE001  it is passed to the first process
        error = HostLostError(f"{type(raised).__name__}: {raised}")
    try:
        first.send(call.channel, Returned(error))
    except PeerLostError:
        return
