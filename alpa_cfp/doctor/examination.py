"""Runs all checks, each after those that it depends on, and gives findings one by one.

Invariant: a check that raises an exception is a finding, and the other checks still run.
"""

from collections.abc import Callable, Iterator

from alpa_cfp.doctor import installation, machine, probing, profiles
from alpa_cfp.doctor.finding import Finding
from alpa_on_jax import versions


def findings(database: str | None = None, *, cluster: bool = False) -> Iterator[Finding]:
    """Runs all checks.

    Args:
        database: The profile database's path; None for the user's.
        cluster: Whether to start, and stop, a Ray cluster of one CPU.
    """
    names = ["alpa", "jax", "solver"]
    if versions.installed_version("ray") is not None:
        names += ["ray", *(["cluster"] if cluster else [])]
    with probing.started(names) as probes:
        yield _checked("Python", installation.python)
        yield _checked("JAX", lambda: installation.jax(probes.answer("jax")))
        yield _checked("alpa", installation.alpa)
        yield _checked("import alpa", lambda: installation.importing_alpa(probes.answer("alpa")))
        for name in ("flax", "optax", "numpy"):
            yield _checked(name, lambda name=name: installation.package(name, probes.answer("jax")))
        yield _checked("devices", lambda: machine.devices(probes.answer("jax")))
        yield _checked("ILP solver", lambda: machine.solver(probes.answer("solver")))
        yield _checked("profiles", lambda: profiles.database(database, versions.installed_version("jaxlib")))
        started = probes.answer("cluster") if cluster else None
        yield _checked("Ray", lambda: machine.ray(probes.answer("ray"), started))


def _checked(check: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except Exception as error:  # noqa: BLE001  (one check that breaks must not hide what the others find)
        found = f"looking at it failed: {type(error).__name__}: {probing.without_paths(' '.join(str(error).split()))}"
        return Finding(check, "problem", found, "please report this with the whole output of alpa-cfp doctor")
