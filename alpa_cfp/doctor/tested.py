"""The versions of other packages that the tests run with, and those that this package can be installed with.

The versions of alpa and jax are in `alpa_on_jax.versions`, which refuses others. Invariant: the versions here are those
of requirements/ and pyproject.toml, which a test compares.
"""

import re
import sys
from typing import Literal

from alpa_cfp.doctor.finding import Status
from alpa_on_jax import versions

TESTED_PYTHONS = ("3.11", "3.12", "3.13")
# In the order of TESTED_PYTHONS.
TESTED = {
    "flax": ("0.12.8", "0.12.12", "0.12.12"),
    "optax": ("0.2.8", "0.2.8", "0.2.8"),
    "numpy": ("2.4.6", "2.5.5", "2.5.5"),
    "pulp": ("3.3.2", "3.3.2", "3.3.2"),
    "ray": ("2.60.0", "2.60.0", "2.60.0"),
}
NEEDED = {
    "flax": "flax>=0.12.8",
    "optax": "optax>=0.2.8",
    "numpy": "numpy>=2.0",
    "pulp": "pulp>=2.6,<4",
    "ray": "ray>=2.60,<3",
}
# Packages that `pip install .` does not install, because autoshard does not need them.
OF_ALPA = frozenset({"flax", "optax", "pulp", "ray"})
Known = Literal["tested", "untested", "unsuitable"]


def alpa_is_wanted() -> bool:
    """Whether this environment is meant to run alpa; `pip install .` alone is for plain JAX."""
    return versions.installed_version("alpa") is not None


def severity(name: str) -> Status:
    """The status of a finding that a package is missing or does not work."""
    return "problem" if name not in OF_ALPA or alpa_is_wanted() else "note"


def adding(name: str) -> str:
    """The command that adds a missing package."""
    if name not in OF_ALPA or alpa_is_wanted():
        return f"pip install '{NEEDED[name]}'"
    return "only alpa needs it; pip install '.[alpa]' in the folder of alpa_cfp adds it"


def how_known(name: str, version: str) -> Known:
    """Whether a version is tested, not tested but allowed, or not allowed."""
    if version in TESTED.get(name, ()):
        return "tested"
    return "untested" if _satisfies(version, NEEDED[name]) else "unsuitable"


def reinstalling(name: str) -> str:
    """The command that reinstalls a package in the version that is tested with this Python, or the newest."""
    return f"pip install --force-reinstall {name}=={TESTED[name][_place()]}"


def suitable_jax() -> str:
    """The JAX that is tested with this Python, or the newest."""
    return versions.TESTED_JAX_VERSIONS[_place()]


def tested_words(name: str) -> str:
    """The tested versions as text: "0.12.8, 0.12.12"."""
    return ", ".join(dict.fromkeys(TESTED[name]))


def _place() -> int:
    """The place of this Python in TESTED_PYTHONS; the last for one that is not there."""
    python = "{}.{}".format(*sys.version_info)
    return TESTED_PYTHONS.index(python) if python in TESTED_PYTHONS else -1


def _satisfies(version: str, requirement: str) -> bool:
    """Whether a version is within a requirement's `>=` and `<`; a pre-release counts as its release."""
    number = _number(version)
    limits = re.findall(r"(>=|<)([\d.]+)", requirement)
    return all(number >= _number(limit) if sign == ">=" else number < _number(limit) for sign, limit in limits)


def _number(version: str) -> tuple[int, ...]:
    # 2.0 equals 2.
    digits = re.match(r"[\d.]*", version)
    numbers = [int(part) for part in (digits.group() if digits else "").split(".") if part]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
