"""What all tests share: 8 virtual CPU devices, logical meshes by name, the serial run, hypothesis profiles.

Invariant: the devices are asked for before anything imports jax, through the environment, so processes that a test
starts have them too; what the user has set already (XLA_FLAGS, JAX_PLATFORMS) stays.
"""

import gc
import itertools
import os
import sys
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

DEVICES_FLAG = "--xla_force_host_platform_device_count"
# The others take half or more off the time to compile: LLVM optimises less, and MLIR emits no fusions. XLA's own passes
# are as ever.
_XLA_FLAGS = {
    DEVICES_FLAG: "8",
    "--xla_backend_extra_options": "xla_cpu_disable_new_fusion_emitters",
    "--xla_backend_optimization_level": "0",
    "--xla_llvm_disable_expensive_passes": "true",
}
_given = os.environ.get("XLA_FLAGS", "")
os.environ["XLA_FLAGS"] = " ".join(
    [_given, *(f"{flag}={value}" for flag, value in _XLA_FLAGS.items() if flag not in _given)]
).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Benchmarks are no part of the distribution: they are imported from the tree, and all else as it is installed.
sys.path.append(str(Path(__file__).parents[1]))

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

from thorough import THOROUGH  # noqa: E402

# Derandomised, so that a failure in CI is a failure here; `explore` is for looking for new ones.
settings.register_profile(
    "default", derandomize=True, deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow]
)
# It must say so: a profile inherits from the one that is loaded, which from here on is the derandomised one.
settings.register_profile("explore", derandomize=False, deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.hookimpl(optionalhook=True)  # there is none without xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With --dist=loadgroup, run tests of the same parameters in one process, which compiles them once.

    xdist's own scheduler (3.8) does not see groups under pytest 9.2: it looks for them in an attribute that is gone.
    """
    if config.getvalue("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class ByParameters(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            name, bracket, parameters = nodeid.partition("[")
            return bracket + parameters or name

    return ByParameters(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the cases that `thorough` lists; skip tests marked `gpu` where jax sees no GPU."""
    found: dict[str, set[str]] = {}
    for item in items:
        name, _, case = item.name.removesuffix("]").partition("[")
        if name in THOROUGH:
            found.setdefault(name, set()).add(case)
            if any(fnmatchcase(case, pattern) for pattern in THOROUGH[name]):
                item.add_marker(pytest.mark.thorough)
    if not any("::" in each for each in config.args):  # else some cases of a test may be named by themselves
        for name, cases in found.items():
            _check_thorough(name, cases)
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not on_gpu:
        return
    import jax  # only if there are such tests

    if jax.default_backend() != "gpu":
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a GPU: JAX_PLATFORMS=cuda pytest -m gpu"))


def _check_thorough(name: str, cases: set[str]) -> None:
    """Hold what `thorough` lists of a test against all its cases.

    Raises:
        pytest.UsageError: it lists cases that are not there, or leaves none to `make test`.
    """
    absent = [each for each in THOROUGH[name] if not any(fnmatchcase(case, each) for case in cases)]
    if absent:
        raise pytest.UsageError(f"tests/thorough.py lists cases that {name} does not have: {absent}")
    if all(any(fnmatchcase(case, each) for each in THOROUGH[name]) for case in cases):
        raise pytest.UsageError(f"tests/thorough.py leaves no case of {name} to `make test`")


# Linux gives a process 65,530 memory mappings, and jax keeps what it has compiled, of which each takes some. One that
# has none left aborts. So they are counted now and then.
_MANY_MAPPINGS, _TESTS_BETWEEN_COUNTS = 20_000, 20
_run_tests = itertools.count(1)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Let go of compiled programs before there are too many."""
    mappings = Path("/proc/self/maps")
    if next(_run_tests) % _TESTS_BETWEEN_COUNTS or not mappings.exists():
        return
    if len(mappings.read_bytes().splitlines()) > _MANY_MAPPINGS:
        import jax

        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="session")
def logical_mesh() -> Callable[[str], Any]:
    """Gives alpa's logical mesh over this process' first devices by its shape: `logical_mesh("2x4")`."""
    from alpa_cfp_bench.workloads.meshes import logical_mesh

    return logical_mesh


@pytest.fixture(scope="session")
def serial_reference() -> Callable[..., Any]:
    """Gives `fn(*args)` as one device computes it, without alpa: `serial_reference(fn, *args)`, a pytree of numpy."""
    from integration.serial import run_serially

    return run_serially
