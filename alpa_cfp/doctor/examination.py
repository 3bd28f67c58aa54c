"""The whole examination, in the order in which one thing depends on another.

Takes what the user asked for; gives findings one by one, as soon as they are known. Invariant: a check that fails in a
way that nobody foresaw is a finding, and the others go on.
"""

from collections.abc import Callable, Iterator

from alpa_cfp.doctor import installation, machine, probing, profiles
from alpa_cfp.doctor.finding import Finding
from alpa_on_jax import versions


def findings(database: str | None = None, *, cluster: bool = False) -> Iterator[Finding]:
    """Look at everything.

    Args:
        database: The profile database's path; None for the user's.
        cluster: Whether to start a Ray cluster of one CPU, which is stopped again.
    """
    names = ["alpa", "jax", "solver"]
    if versions.installed_version("ray") is not None:
        names += ["ray", *(["cluster"] if cluster else [])]
    if machine.cupy_is_installed():
        names.append("cupy")
    with probing.started(names) as probes:
        yield _checked("Python", installation.python)
        yield _checked("JAX", lambda: installation.jax(probes.answer("jax")))
        yield _checked("alpa", installation.alpa)
        yield _checked("import alpa", lambda: installation.importing_alpa(probes.answer("alpa")))
        for name in ("flax", "optax", "numpy"):
            yield _checked(name, lambda name=name: installation.package(name, probes.answer("jax")))
        devices = _checked("devices", lambda: machine.devices(probes.answer("jax")))
        yield devices
        yield _checked("ILP solver", lambda: machine.solver(probes.answer("solver")))
        yield _checked("profiles", lambda: profiles.database(database, versions.installed_version("jaxlib")))
        asked = probes.answer("cluster") if cluster else None
        yield _checked("Ray", lambda: machine.ray(probes.answer("ray"), asked))
        yield _checked("cupy", lambda: machine.cupy(probes.answer("cupy"), devices))


def _checked(check: str, look: Callable[[], Finding]) -> Finding:
    try:
        return look()
    except Exception as error:  # noqa: BLE001  (one check that breaks must not hide what the others find)
        found = f"looking at it failed: {type(error).__name__}: {probing.without_paths(' '.join(str(error).split()))}"
        return Finding(check, "problem", found, "please report this with the whole output of alpa-cfp doctor")
