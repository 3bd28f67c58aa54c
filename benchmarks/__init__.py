"""Benchmarks: programs that print what they measured and write it to `benchmarks/results/`.

Run them from the repository's root, one at a time: `python -m benchmarks.step_overhead --help`. Invariant: importing
this package asks for 8 virtual CPU devices before jax is imported (what the user has set stays), and makes the models
and shardings of `tests/integration` importable, so that what is timed is what the tests hold against the serial run.
"""

import os
import sys
from pathlib import Path

DEVICES_FLAG = "--xla_force_host_platform_device_count"
if DEVICES_FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {DEVICES_FLAG}=8".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")

_TESTS = str(Path(__file__).resolve().parent.parent / "tests")
if _TESTS not in sys.path:
    sys.path.insert(0, _TESTS)
