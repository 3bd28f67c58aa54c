"""Measure programs in this process, on devices whose memory belongs to one process.

Takes the client of a mesh and groups of modules; gives a profile for each. Invariant: no program is loaded after
`close`. One that crashes ends this process, and nothing bounds its time: `isolated` and `hosts` measure elsewhere.
"""

import random
from collections.abc import Generator, Sequence

from alpa_cfp.profiling.process.events import Finished
from alpa_cfp.profiling.process.group import Loaded, measure_group
from alpa_cfp.spmd.compile.executable import Client
from alpa_cfp.spmd.module.hlo_module import HloModule


class InProcessRunner:
    """Measures in this process."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._kept: dict[bytes, Loaded] = {}

    @property
    def pid(self) -> None:
        """None: there is no other process."""
        return None

    def start(self) -> None:
        """Nothing has to be started."""

    def measure(self, modules: Sequence[HloModule], drawn: random.Random, samples: int) -> Generator[Finished]:
        """Measure a group, each program so often."""
        for event in measure_group(modules, self._client, samples, drawn, self._kept):
            if isinstance(event, Finished):
                yield event

    def close(self) -> None:
        """Let go of what is loaded."""
        for program in self._kept.values():
            program.executable.delete()
        self._kept.clear()
