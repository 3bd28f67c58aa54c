"""Which versions of other packages the tests run with, and which ones this package can be installed with.

Takes a distribution's name and version; gives back how well that version is known. The versions of alpa and jax are
alpa_on_jax's to know (`alpa_on_jax.versions`): it refuses others. Invariant: what stands here is what requirements/
and pyproject.toml say, which a test compares.
"""

import re
import sys
from typing import Literal

TESTED_PYTHONS = ("3.11", "3.12")
# In the order of TESTED_PYTHONS.
TESTED = {
    "flax": ("0.12.8", "0.12.12"),
    "optax": ("0.2.8", "0.2.8"),
    "numpy": ("2.4.6", "2.5.5"),
    "pulp": ("3.3.2", "3.3.2"),
    "ray": ("2.60.0", "2.60.0"),
}
NEEDED = {
    "flax": "flax>=0.12.8",
    "optax": "optax>=0.2.8",
    "numpy": "numpy>=2.0",
    "pulp": "pulp>=2.6,<4",
    "ray": "ray>=2.60,<3",
    "cupy": "cupy>=14",
}
Known = Literal["tested", "untested", "unsuitable"]


def how_known(name: str, version: str) -> Known:
    """Whether a version is one of the tested, another one that may be installed, or one that may not."""
    if version in TESTED.get(name, ()):
        return "tested"
    return "untested" if _satisfies(version, NEEDED[name]) else "unsuitable"


def reinstalling(name: str) -> str:
    """The command that installs a package anew, in the version that is tested with this Python, or the newest."""
    place = TESTED_PYTHONS.index("3.11") if sys.version_info < (3, 12) else -1
    return f"pip install --force-reinstall {name}=={TESTED[name][place]}"


def tested_words(name: str) -> str:
    """The tested versions as a sentence has them: "0.12.8 and 0.12.12"."""
    return " and ".join(dict.fromkeys(TESTED[name]))


def _satisfies(version: str, requirement: str) -> bool:
    """Whether a version lies within a requirement's `>=` and `<`; all that a pre-release says is its number."""
    number = _number(version)
    limits = re.findall(r"(>=|<)([\d.]+)", requirement)
    return all(number >= _number(limit) if sign == ">=" else number < _number(limit) for sign, limit in limits)


def _number(version: str) -> tuple[int, ...]:
    # 2.0 is 2: zeros at the end say nothing.
    digits = re.match(r"[\d.]*", version)
    numbers = [int(part) for part in (digits.group() if digits else "").split(".") if part]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
