"""Findings about Python and the packages: their versions, whether these are tested, and whether they import.

Nothing is imported here but alpa_on_jax's list of versions, which imports nothing itself.
"""

import base64
import csv
import hashlib
import os
import platform
import sys
from importlib import metadata
from pathlib import Path

from alpa_cfp.doctor import tested
from alpa_cfp.doctor.finding import Finding
from alpa_cfp.doctor.probing import Answer, without_paths
from alpa_on_jax import versions

# The SHA-256 of the paths and SHA-256s of the files in alpa/ of PyPI's alpa-0.2.3-py3-none-any.whl.
ALPA_FILES_DIGEST = "7df26fc73c27bddd3638fcc6dbf27b929983f865ba99b8b7cfd8d6dc78446387"
ALPA_COMMAND = f"pip install --force-reinstall --no-deps alpa=={versions.ALPA_VERSION}"


def python() -> Finding:
    """The version of Python."""
    version = platform.python_version()
    found = f"{version} ({sys.executable})"
    details = {"version": version, "executable": sys.executable, "tested": list(tested.TESTED_PYTHONS)}
    if version.rpartition(".")[0] in tested.TESTED_PYTHONS:
        return Finding("Python", "ok", found, details=details)
    words = ", ".join(tested.TESTED_PYTHONS)
    return Finding("Python", "note", f"{found}; the tests run on {words}", details=details)


def jax(answer: Answer) -> Finding:
    """The versions of jax and jaxlib; untested ones are refused."""
    jax_version, jaxlib_version = (versions.installed_version(name) for name in ("jax", "jaxlib"))
    pairs = versions.TESTED_JAX_VERSIONS
    details = {"jax": jax_version, "jaxlib": jaxlib_version, "tested": list(pairs)}
    found = f"jax {jax_version or 'is not installed'}, jaxlib {jaxlib_version or 'is not installed'}"
    suitable = tested.suitable_jax()
    fix = f"pip install jax=={suitable} jaxlib=={suitable}"
    if jax_version is None or jaxlib_version is None:
        return Finding("JAX", "problem", found, fix, details)
    if error := answer.error("jax"):
        anew = fix.replace("install", "install --force-reinstall", 1)
        return Finding("JAX", "problem", f"{found}, but `import jax` fails: {error}", anew, details)
    if jax_version == jaxlib_version and jax_version in pairs:
        return Finding("JAX", "ok", found, details=details)
    untested = f"{found}; tested with {', '.join(pairs)} (both of the same version)"
    if os.environ.get(versions.ALLOW_UNTESTED_VARIABLE) == "1":
        return Finding(
            "JAX", "note", f"{untested}, and {versions.ALLOW_UNTESTED_VARIABLE}=1 allows others", "", details
        )
    return Finding("JAX", "problem", f"{untested}. alpa refuses any other", fix, details)


def alpa() -> Finding:
    """Whether the installed alpa is PyPI's alpa 0.2.3, file by file. It is optional: autoshard works without it."""
    version = versions.installed_version("alpa")
    details = {"version": version, "wanted": versions.ALPA_VERSION}
    if version is None:
        found = "it is not installed; autoshard and plain JAX do not need it"
        fix = f"to use alpa: pip install '.[alpa]' in the folder of alpa_cfp, then {ALPA_COMMAND}"
        return Finding("alpa", "note", found, fix, details)
    if version != versions.ALPA_VERSION:
        found = f"{version} is installed, and only {versions.ALPA_VERSION} works: its functions are replaced by name"
        return Finding("alpa", "problem", found, ALPA_COMMAND, details)
    try:
        changed = _alpa_changes()
    except OSError as error:
        return Finding("alpa", "problem", f"{version}, but a file of it cannot be read: {_reason(error)}", ALPA_COMMAND)
    if changed:
        return Finding("alpa", "problem", f"{version}, but not as it is on PyPI: {changed}", ALPA_COMMAND, details)
    return Finding("alpa", "ok", f"{version}, every file as on PyPI", details=details)


def importing_alpa(answer: Answer) -> Finding:
    """Whether `import alpa` works as the first import of a process."""
    if not tested.alpa_is_wanted():
        return Finding("import alpa", "note", "not tried, because alpa is not installed")
    if answer.value("hook", "runs") is False:
        found = "the startup file alpa_on_jax.pth does not run in new Python processes, so `import alpa` fails"
        fix = (
            "install alpa_cfp once more into this environment (pip install . in its folder); do not start Python by -S"
        )
        return Finding("import alpa", "problem", found, fix)
    error = answer.error("alpa")
    if not error:
        return Finding("import alpa", "ok", "works as the first import of a process, through the startup file")
    fix = "the message says what to do"
    if " install " not in error and "Run it from" not in error:
        fix = f"mend what stands above and try again; if nothing does: {ALPA_COMMAND}"
    return Finding("import alpa", "problem", f"fails: {error}", fix)


def package(name: str, answer: Answer) -> Finding:
    """The version of a package, and whether it imports."""
    version = versions.installed_version(name)
    details = {"version": version, "tested": list(tested.TESTED[name])}
    fix, bad = tested.adding(name), tested.severity(name)
    if version is None:
        return Finding(name, bad, "it is not installed", fix, details)
    if error := answer.error(name):
        anew = "mend JAX (see above)" if name != "numpy" and answer.error("jax") else tested.reinstalling(name)
        return Finding(name, bad, f"{version}, but `import {name}` fails: {error}", anew, details)
    known = tested.how_known(name, version)
    if known == "unsuitable":
        return Finding(name, bad, f"{version} is not what is needed: {tested.NEEDED[name]}", fix, details)
    if known == "untested":
        return Finding(name, "note", f"{version}; tested with {tested.tested_words(name)}", "", details)
    return Finding(name, "ok", version, details=details)


def _alpa_changes() -> str:
    """The difference of the installed alpa from PyPI's; "" if there is none."""
    distribution = metadata.distribution("alpa")
    recorded = _recorded(distribution)
    files = {path: Path(str(distribution.locate_file(path))) for path in recorded}
    missing = [path for path, file in files.items() if not file.exists()]
    if missing:
        return f"{_first(missing)} is missing"
    digests = {path: hashlib.sha256(file.read_bytes()) for path, file in files.items()}
    changed = [path for path, digest in digests.items() if not _is(digest.digest(), recorded[path])]
    if changed:
        return f"{_first(changed)} was changed"
    lines = sorted(f"{path} {digest.hexdigest()}" for path, digest in digests.items())
    if hashlib.sha256("\n".join(lines).encode()).hexdigest() != ALPA_FILES_DIGEST:
        return "it was installed from elsewhere, with other files"
    return ""


def _recorded(distribution: metadata.Distribution) -> dict[str, str]:
    """The digests of alpa's files in RECORD; `distribution.files` would leave out missing files."""
    rows = csv.reader((distribution.read_text("RECORD") or "").splitlines())
    return {path: digest.removeprefix("sha256=") for path, digest, _ in rows if path.startswith("alpa/") and digest}


def _is(digest: bytes, recorded: str) -> bool:
    """Whether a digest is that of RECORD, which is base64 without padding."""
    return base64.urlsafe_b64encode(digest).decode().rstrip("=") == recorded


def _first(paths: list[str]) -> str:
    return paths[0] if len(paths) == 1 else f"{paths[0]} (of {len(paths)} files)"


def _reason(error: OSError) -> str:
    return without_paths(error.strerror or str(error))
