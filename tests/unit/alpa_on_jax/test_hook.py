"""Importing alpa: first in a process, with what is missing or different, and what a failure leaves behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

MODULES = [
    "alpa",
    "alpa.testing",
    "alpa.model.gpt_model",
    "alpa.model.bert_model",
    "alpa.model.moe",
    "alpa.model.wide_resnet",
    "alpa.model.unet_2d",
    "alpa.model.conformer",
    "alpa.model.model_util",
]


def run(code: str, path: list[Path] | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a new process; `path` goes before everything else on sys.path."""
    env = os.environ | environment
    if path:
        env["PYTHONPATH"] = os.pathsep.join(map(str, path))
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


def printed(code: str, path: list[Path] | None = None, **environment: str) -> str:
    result = run(code, path, **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def fake_distribution(folder: Path, name: str, version: str, entry_points: str = "") -> Path:
    """A folder in which a distribution of that name and version says that it is installed."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(entry_points)
    return folder


def site_without_alpa(folder: Path) -> str:
    """Code that gives a process this environment's packages, all but alpa."""
    site = next(Path(entry) for entry in sys.path if (Path(entry) / "jax" / "__init__.py").exists())
    folder.mkdir()
    for entry in site.iterdir():
        if entry.name != "alpa" and not entry.name.startswith("alpa-") and entry.suffix != ".pth":
            (folder / entry.name).symlink_to(entry)
    import alpa_on_jax

    root = Path(alpa_on_jax.__file__).parents[1]  # the packages themselves, once the project is installed
    paths = [str(folder)] if root == site else [str(folder), str(root)]
    return f"import sys; sys.path += {paths!r}; import alpa_on_jax._startup\n"


@pytest.mark.parametrize("module", MODULES)
def test_each_module_can_be_the_first_import_of_a_process(module: str) -> None:
    assert printed(f"import {module}; print({module}.__name__)") == module


def test_importing_alpa_starts_no_backend_and_loads_no_ray() -> None:
    code = "import sys, alpa; from jax._src import xla_bridge; print('ray' in sys.modules, dict(xla_bridge._backends))"
    assert printed(code) == "False {}"


@pytest.mark.parametrize("flags", ["--xla_force_host_platform_device_count=3", ""])
def test_importing_alpa_keeps_the_flags_that_the_user_gave_to_xla(flags: str) -> None:
    assert printed("import os, alpa; print(os.environ.get('XLA_FLAGS', ''))", XLA_FLAGS=flags) == flags


def test_alpa_can_be_imported_where_ray_is_not_installed() -> None:
    code = """
import sys
sys.modules["ray"] = None
import alpa
from alpa_on_jax.errors import RayMissingError
try:
    alpa.device_mesh.ray.init()
except RayMissingError as error:
    print(isinstance(error, ModuleNotFoundError), "pip install ray" in str(error))
"""
    assert printed(code) == "True True"


def test_a_machine_with_a_gpu_and_no_cupy_can_import_alpa(tmp_path: Path) -> None:
    # has_cuda asks nvidia-smi, and alpa.device_mesh then imports NCCL functions that import cupy.
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\nexit 0\n")
    tool.chmod(0o755)
    plugin = fake_distribution(tmp_path / "site", "cudaplugin", "1.0", "[jax_plugins]\nxla_cuda12 = cudaplugin\n")
    code = "import sys; sys.modules['cupy'] = None; import alpa; print(alpa.global_config.backend)"
    path = f"{tool.parent}{os.pathsep}{os.environ['PATH']}"
    assert printed(code, [plugin], PATH=path, JAX_PLATFORMS="") == "gpu"
    assert printed(code, [plugin], PATH=path, JAX_PLATFORMS="cpu") == "cpu"


def test_an_untested_jax_gives_one_error_that_names_the_tested_ones_and_the_way_to_try(tmp_path: Path) -> None:
    result = run("import alpa", [fake_distribution(tmp_path, "jax", "9.9.9")])
    last_line = result.stderr.strip().splitlines()[-1]
    assert result.returncode == 1
    for part in ("JaxVersionError", "jax 9.9.9", "0.10.2", "0.11.2", "ALPA_ON_JAX_ALLOW_UNTESTED_JAX=1"):
        assert part in last_line


def test_an_untested_jax_goes_with_a_warning_if_the_user_asks_for_it(tmp_path: Path) -> None:
    fake = fake_distribution(tmp_path, "jax", "9.9.9")
    result = run("import alpa; print(alpa.__version__)", [fake], ALPA_ON_JAX_ALLOW_UNTESTED_JAX="1")
    assert result.stdout.strip() == "0.2.3"
    assert "untested JAX" in result.stderr


def test_another_version_of_alpa_gives_an_error_that_names_the_right_one(tmp_path: Path) -> None:
    result = run("import alpa", [fake_distribution(tmp_path, "alpa", "0.2.2")])
    assert "AlpaVersionError: alpa 0.2.2 is installed" in result.stderr
    assert "pip install --no-deps alpa==0.2.3" in result.stderr


def test_another_alpa_that_comes_first_gives_an_error_that_names_both(tmp_path: Path) -> None:
    other = tmp_path / "alpa" / "__init__.py"
    other.parent.mkdir()
    other.write_text("__version__ = '0.2.3'\n")
    result = run("import alpa", [tmp_path])
    assert f"AlpaShadowedError: `import alpa` finds {other}" in result.stderr


@pytest.mark.parametrize("folder_called_alpa", [False, True])
def test_a_missing_alpa_gives_an_error_that_says_how_to_install_it(tmp_path: Path, folder_called_alpa: bool) -> None:
    setup = site_without_alpa(tmp_path / "site")
    if folder_called_alpa:
        (tmp_path / "site" / "alpa").mkdir()
    result = subprocess.run(
        [sys.executable, "-S", "-c", setup + "import alpa"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert "AlpaMissingError: No module named 'alpa'" in result.stderr
    assert "pip install --no-deps alpa==0.2.3" in result.stderr


def test_an_import_that_fails_is_undone_and_the_next_one_does_the_same() -> None:
    # alpa.util imports tqdm, when other alpa modules are loaded already.
    code = """
import sys, jax
def attempt():
    try:
        import alpa
        return "imported"
    except ImportError as error:
        left = [m for m in sys.modules if m == "alpa" or m.startswith("alpa.")]
        return type(error).__name__, left, hasattr(jax, "tree_map"), "jax.linear_util" in sys.modules
sys.modules["tqdm"] = None
print(attempt() == attempt() == ("ModuleNotFoundError", [], False, False))
del sys.modules["tqdm"]
print(attempt())
"""
    assert printed(code).splitlines() == ["True", "imported"]


def test_the_loader_of_an_alpa_module_still_gives_its_source() -> None:
    assert "def shutdown" in printed("import alpa.api, inspect; print(inspect.getsource(alpa.api))")


def test_names_that_alpa_imported_from_ray_are_rays_own_once_ray_is_used() -> None:
    code = """
import alpa, sys
from alpa.pipeline_parallel import stage_profiling
print(type(stage_profiling.RayActorError).__name__)
alpa.device_mesh.ray.put
import ray
print(stage_profiling.RayActorError is ray.exceptions.RayActorError, alpa.device_mesh.ray.put is ray.put)
print(alpa.device_mesh.ray.is_initialized())
"""
    assert printed(code).splitlines() == ["_LazyName", "True True", "False"]
