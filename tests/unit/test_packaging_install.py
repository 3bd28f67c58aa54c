"""Installing and removing the distribution: what it leaves in a new environment, built from a copy of the checkout."""

import shutil
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STARTUP_FILE = "alpa_on_jax.pth"

pytestmark = [
    pytest.mark.slow,
    # The environment's own setuptools builds, so nothing is fetched.
    pytest.mark.skipif(int(version("setuptools").split(".")[0]) < 77, reason="needs setuptools 77: use `make test`"),
]


class Environment:
    """A new virtual environment without packages, into which the running one's pip installs."""

    def __init__(self, path: Path) -> None:
        venv.create(path, with_pip=False)
        self.python = path / "bin" / "python"
        self.site_packages = next(path.glob("lib/python*/site-packages"))

    def pip(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "pip", "--python", str(self.python), *arguments]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr

    def run(self, code: str) -> tuple[str, str]:
        """What a new process prints to stdout and stderr; it stands outside the checkout."""
        result = subprocess.run(
            [self.python, "-c", code], cwd=self.python.parent, check=True, capture_output=True, text=True
        )
        return result.stdout.strip(), result.stderr


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a build reads, copied: building leaves files beside the sources."""
    target = tmp_path_factory.mktemp("checkout")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target)
    for name in ("alpa_cfp", "patches", "benchmarks/alpa_cfp_bench"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__"))
    return target


def install(environment: Environment, checkout: Path, build: str = "build_wheel") -> None:
    """Build with a hook of PEP 517 or 660, as pip does, and install what it made."""
    wheels = environment.python.parents[1] / "wheels"
    wheels.mkdir()
    code = f"from setuptools import build_meta; build_meta.{build}({str(wheels)!r})"
    result = subprocess.run([sys.executable, "-c", code], cwd=checkout, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    environment.pip("install", "--no-deps", "--no-index", *map(str, wheels.iterdir()))


REGISTERED = "import sys; print('alpa_on_jax._startup' in sys.modules)"


@pytest.mark.parametrize("build", ["build_wheel", "build_editable"])
def test_an_installation_registers_the_hook_and_its_removal_leaves_nothing(
    build: str, checkout: Path, tmp_path: Path
) -> None:
    environment = Environment(tmp_path / "venv")
    install(environment, checkout, build)
    assert environment.run(REGISTERED) == ("True", "")
    environment.pip("uninstall", "--yes", "alpa_cfp")
    # pip removes the folder too once it is empty.
    assert list(environment.site_packages.glob("*")) == []
    assert environment.run(REGISTERED) == ("False", "")


def test_python_starts_without_a_message_where_the_package_was_deleted_by_hand(checkout: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    install(environment, checkout)
    shutil.rmtree(environment.site_packages / "alpa_on_jax")
    assert (environment.site_packages / STARTUP_FILE).is_file()
    assert environment.run(REGISTERED) == ("False", "")


def test_importing_alpa_where_it_is_not_installed_says_how_to_install_it(checkout: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "venv")
    install(environment, checkout)
    message, _ = environment.run("try:\n import alpa\nexcept ModuleNotFoundError as error: print(error)")
    assert "pip install --no-deps alpa==0.2.3" in message
