"""Without a target's compiler its tests are skipped: `make targets` has both."""

import importlib.util

import pytest

_PLUGINS = {"h100": "jax_cuda12_plugin", "v5e": "libtpu"}


@pytest.fixture(params=["h100:1x8", "v5e:2x4"])
def name(request: pytest.FixtureRequest) -> str:
    """A target whose compiler is installed."""
    plugin = _PLUGINS[request.param.partition(":")[0]]
    if importlib.util.find_spec(plugin) is None:
        pytest.skip(f"{plugin} is not installed")
    return request.param
