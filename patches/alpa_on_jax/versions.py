"""The versions of alpa, jax and jaxlib that this package is tested with, and the check of those installed.

Takes the installed distributions' metadata; gives nothing back when they are known, and otherwise one error (see
`errors`) that names them. It runs before anything is patched, so that a refused version leaves the process as it was.
"""

import logging
import os
from importlib import metadata

from alpa_on_jax import errors

ALPA_VERSION = "0.2.3"
TESTED_JAX_VERSIONS = ("0.10.2", "0.11.2", "0.12.0.1")
ALLOW_UNTESTED_VARIABLE = "ALPA_ON_JAX_ALLOW_UNTESTED_JAX"

logger = logging.getLogger(__name__)


def installed_version(distribution: str) -> str | None:
    """The version of an installed distribution, or None where there is none."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def check_alpa() -> None:
    """Raise unless alpa 0.2.3 is what is installed.

    Raises:
        errors.AlpaMissingError: no alpa is installed.
        errors.AlpaVersionError: it is another version.
    """
    version = installed_version("alpa")
    if version is None:
        raise errors.AlpaMissingError(ALPA_VERSION)
    if version != ALPA_VERSION:
        raise errors.AlpaVersionError(version, ALPA_VERSION)


def check_jax() -> None:
    """Raise unless jax and jaxlib are of one tested version, or the user has asked to go on all the same.

    Raises:
        errors.JaxVersionError: jax or jaxlib is missing or untested, and `ALPA_ON_JAX_ALLOW_UNTESTED_JAX` is not 1.
    """
    found = {name: installed_version(name) for name in ("jax", "jaxlib")}
    if found["jax"] in TESTED_JAX_VERSIONS and found["jaxlib"] == found["jax"]:
        return
    error = errors.JaxVersionError(found, TESTED_JAX_VERSIONS, ALLOW_UNTESTED_VARIABLE)
    if None in found.values() or os.environ.get(ALLOW_UNTESTED_VARIABLE) != "1":
        raise error
    logger.warning("%s is set, so alpa goes on with an untested JAX. %s", ALLOW_UNTESTED_VARIABLE, error)
