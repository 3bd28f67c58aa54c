"""Benchmarks: programs that print what they measured and write it to `benchmarks/results/`.

Run them from the repository's root, one at a time: `python -m benchmarks.step_overhead --help`. Invariant: importing
this package asks for 8 virtual CPU devices before jax is imported (what the user has set stays). What is timed are the
models of `alpa_cfp_bench.workloads`, which the tests hold against the serial run.
"""

import os

from alpa_cfp_bench.devices import ask_for_virtual_devices

ask_for_virtual_devices(8)
os.environ.setdefault("JAX_PLATFORMS", "cpu")
