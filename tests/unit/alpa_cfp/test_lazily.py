"""The names of a package are there, and what they need is imported when they are asked for."""

import importlib
import subprocess
import sys

import pytest

import alpa_cfp
from alpa_cfp.lazily import lazily

PACKAGES = ("alpa_cfp", "alpa_cfp.profiling")


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_has_each_name_that_it_lists(name: str) -> None:
    package = importlib.import_module(name)
    for listed in package.__all__:
        assert getattr(package, listed).__name__ == listed


def test_a_name_that_a_package_does_not_have_is_pythons_own_error() -> None:
    with pytest.raises(AttributeError, match="module 'alpa_cfp' has no attribute 'Planner'"):
        alpa_cfp.Planner  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_nothing_is_imported_until_it_is_asked_for() -> None:
    get = lazily("package", {"there": "no.such.module"})
    with pytest.raises(ModuleNotFoundError):
        get("there")


@pytest.mark.parametrize("name", [*PACKAGES, "alpa_cfp.database", "alpa_cfp.profiling.process.supervisor"])
def test_jax_is_not_imported_with_what_does_without_it(name: str) -> None:
    code = f"import sys, {name}; print(sorted({{'jax', 'alpa', 'ray', 'numpy'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
