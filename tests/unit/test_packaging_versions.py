"""The versions that are named in several places agree: pins, ranges, what alpa_on_jax accepts, what the docs say."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from alpa_on_jax import versions

ROOT = Path(__file__).resolve().parents[2]
LOCKS = {"3.11": "py311.txt", "3.12": "py312.txt", "3.13": "py313.txt"}


def pins(name: str) -> dict[str, str]:
    """Distribution (in lower case, with dashes) -> version, of a file under requirements/."""
    lines = (ROOT / "requirements" / name).read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {distribution.lower().replace("_", "-"): version for distribution, version in pairs}


def project() -> dict[str, object]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_tested_jax_versions_are_the_pinned_ones() -> None:
    assert {pins(lock)["jax"] for lock in LOCKS.values()} == set(versions.TESTED_JAX_VERSIONS)
    assert {pins(lock)["jaxlib"] for lock in LOCKS.values()} == set(versions.TESTED_JAX_VERSIONS)


def test_the_pinned_alpa_is_the_one_that_is_accepted() -> None:
    assert pins("alpa.txt") == {"alpa": versions.ALPA_VERSION}


@pytest.mark.parametrize("lock", LOCKS.values())
def test_pins_satisfy_what_the_distribution_requires(lock: str) -> None:
    pinned, stated = pins(lock), project()
    dependencies, extras = stated["dependencies"], stated["optional-dependencies"]
    assert isinstance(dependencies, list)
    assert isinstance(extras, dict)
    for text in [*dependencies, *extras["alpa"]]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(pinned[requirement.name]), f"{text}: pinned {pinned[requirement.name]}"


def test_no_jax_newer_than_the_tested_ones_is_installed_by_default() -> None:
    newest = max(versions.TESTED_JAX_VERSIONS, key=lambda version: [int(part) for part in version.split(".")])
    dependencies = project()["dependencies"]
    assert isinstance(dependencies, list)
    for name in ("jax", "jaxlib"):
        specifiers = [Requirement(text).specifier for text in dependencies if Requirement(text).name == name]
        assert [f"<={newest}" in str(specifier) for specifier in specifiers] == [True]


def test_what_alpa_alone_needs_is_no_requirement_of_autoshard() -> None:
    dependencies = project()["dependencies"]
    assert isinstance(dependencies, list)
    assert not {Requirement(text).name for text in dependencies} & {"alpa", "ray", "pulp", "numba", "flax", "optax"}


@pytest.mark.parametrize(("python", "lock"), LOCKS.items())
def test_the_page_on_installing_names_the_tested_versions(python: str, lock: str) -> None:
    row = rf"^\| {re.escape(python)} \| {re.escape(pins(lock)['jax'])} \| {re.escape(versions.ALPA_VERSION)} \|$"
    assert re.search(row, (ROOT / "docs" / "installation.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", [*LOCKS.values(), "alpa.txt"])
def test_every_requirement_is_pinned_and_names_no_address(name: str) -> None:
    for line in (ROOT / "requirements" / name).read_text().splitlines():
        assert line.startswith("#") or re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.!+-]+", line), line
