"""Errors of the installation: alpa, jax, ray, the ILP solver."""

from collections.abc import Sequence

from alpa_on_jax.errors.base import AlpaOnJaxError


class AlpaMissingError(AlpaOnJaxError, ModuleNotFoundError):
    """Alpa itself is not installed."""

    def __init__(self, wanted: str) -> None:
        super().__init__(
            "No module named 'alpa'. This environment can run alpa on stock JAX, but alpa is not installed. Install it "
            f"without the versions that it pins: pip install --no-deps alpa=={wanted}",
            name="alpa",
        )


class AlpaVersionError(AlpaOnJaxError, ImportError):
    """Another version of alpa is installed."""

    def __init__(self, found: str, wanted: str) -> None:
        super().__init__(
            f"alpa {found} is installed, but only alpa {wanted} runs on stock JAX: its functions are replaced by name. "
            f"Install that one: pip install --no-deps alpa=={wanted}",
            name="alpa",
        )


class AlpaShadowedError(AlpaOnJaxError, ImportError):
    """The alpa that Python would import is not the installed one."""

    def __init__(self, found: str, installed: str) -> None:
        super().__init__(
            f"`import alpa` finds {found} before the installed {installed}. That usually happens when Python runs in a "
            "folder that has another alpa in it. Run it from elsewhere, or take that folder off sys.path",
            name="alpa",
            path=found,
        )


class JaxVersionError(AlpaOnJaxError, ImportError):
    """The installed jax and jaxlib are not a tested pair."""

    def __init__(self, found: dict[str, str | None], tested: Sequence[str], variable: str) -> None:
        have = " and ".join(f"{name} {version or 'not installed'}" for name, version in found.items())
        super().__init__(
            f"alpa on stock JAX is tested with jax and jaxlib {', '.join(tested)} (both of the same version), but "
            f"here are {have}. It uses JAX internals that change between versions. Install a tested version, for "
            f"example: pip install jax=={tested[0]} jaxlib=={tested[0]}; or set {variable}=1 to try this one anyway",
            name="jax",
        )


class RayMissingError(AlpaOnJaxError, ModuleNotFoundError):
    """Ray is needed now, and not installed."""

    def __init__(self, wanted: str) -> None:
        super().__init__(
            f"No module named {wanted.partition('.')[0]!r}: alpa needs {wanted} here, and Ray is not installed. Only "
            "meshes of several processes need it. Install it (pip install ray), or stay in this process: "
            'alpa.init(cluster="local")',
            name=wanted.partition(".")[0],
        )


class RayNameError(AlpaOnJaxError, ImportError):
    """Alpa wants a name of Ray that the installed Ray does not have."""

    def __init__(self, module: str, name: str) -> None:
        super().__init__(
            f"alpa needs {module}.{name}, which the installed Ray does not have: it was removed since Ray 2.1, for "
            'which alpa was written. Stay in this process: alpa.init(cluster="local")',
            name=module,
        )


class SolverMissingError(AlpaOnJaxError, RuntimeError):
    """There is no ILP solver."""

    def __init__(self) -> None:
        super().__init__(
            "alpa's auto-sharding needs the CBC solver that comes with PuLP before version 4, and none was found. "
            "Install it with: pip install 'pulp<4'"
        )
