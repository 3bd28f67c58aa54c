"""The installed distribution: its startup file, what it costs a process that does not want alpa, and alpa itself."""

import base64
import hashlib
import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]


def run_python(code: str) -> str:
    """What a new process of this environment prints; it stands outside the checkout, as a user's does."""
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(sys.executable).parent, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "Error processing line" not in result.stderr
    return result.stdout


def installed() -> Distribution:
    """The project's distribution; skips where the checkout is only on the path."""
    try:
        return distribution("alpa_cfp")
    except PackageNotFoundError:
        pytest.skip("alpa_cfp is not installed in this environment: use `make test`")


def recorded(of: Distribution) -> dict[str, Path]:
    """Where each file lies that the wheel of a distribution installed, by its path in RECORD."""
    assert of.files is not None
    return {str(file): Path(str(file.locate())) for file in of.files}


def test_the_startup_file_belongs_to_the_distribution() -> None:
    files = recorded(installed())
    assert files["alpa_on_jax.pth"].read_text().startswith("import ")
    assert files["alpa_on_jax.pth"].read_text().count("\n") == 1


def test_the_startup_file_lies_where_python_looks_for_it() -> None:
    # A .pth file in a subdirectory is never read.
    assert recorded(installed())["alpa_on_jax.pth"].parent == Path(str(installed().locate_file("")))


@pytest.mark.parametrize(
    ("package", "root"), [("alpa_cfp", "."), ("alpa_on_jax", "patches"), ("alpa_cfp_bench", "benchmarks")]
)
def test_every_source_file_is_in_the_wheel(package: str, root: str) -> None:
    # setuptools leaves out a directory that has no __init__.py.
    files = recorded(installed())
    if not any(name.startswith(f"{package}/") for name in files):
        pytest.skip("the installation is editable")
    sources = {str(path.relative_to(ROOT / root)) for path in (ROOT / root / package).rglob("*.py")}
    assert sources == {name for name in files if name.startswith(f"{package}/") and name.endswith(".py")}


def test_python_without_alpa_loads_only_the_hook_registration() -> None:
    code = (
        "import sys; print(*sorted(m for m in sys.modules if m.split('.')[0] in {'alpa', 'alpa_on_jax', 'alpa_cfp'}))"
    )
    assert run_python(code).split() == ["alpa_on_jax", "alpa_on_jax._startup"]


def test_python_without_alpa_imports_no_module_that_a_bare_start_does_not() -> None:
    code = "import sys; print(*sorted(sys.modules))"
    # -S leaves out site and so every .pth file; the rest is what site itself imports.
    bare = subprocess.run(
        [sys.executable, "-S", "-c", "import site; site.main(); " + code],
        env={"PYTHONPATH": "", "PYTHONNOUSERSITE": "1", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    for heavy in ("jax", "jaxlib", "numpy", "flax", "ray"):
        assert heavy not in bare.stdout.split()
        assert heavy not in run_python(code).split()


def test_importing_alpa_first_works_in_a_new_process() -> None:
    assert run_python("import alpa; print(alpa.__name__, alpa.__version__)").split() == ["alpa", "0.2.3"]


def test_importing_alpa_does_not_import_ray() -> None:
    assert run_python("import sys, alpa; print('ray' in sys.modules)").strip() == "False"


USE_ALPA = """
import alpa, jax, jax.numpy as jnp
from jax.sharding import PartitionSpec as P

method = alpa.ShardParallel(
    devices=alpa.LocalPhysicalDeviceMesh(jax.local_devices()).get_logical_mesh((2, 4)),
    auto_sharding_option=alpa.AutoShardingOption(enable_auto_sharding=False),
    manual_sharding_option=alpa.ManualShardingOption(("x", "y"), in_axis_resources=(P("x", "y"),)),
)
step = alpa.parallelize(lambda x: x + 1, method=method, batch_argnums=(0,))
print(float(step(jnp.ones((8, 8))).sum()))
"""


def _mismatches(of: Distribution) -> list[str]:
    """Files of a distribution that are not what its wheel's RECORD says, by size and sha256."""
    assert of.files is not None
    wrong = []
    for file in of.files:
        if file.hash is None:
            continue
        content = Path(str(file.locate())).read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.new(file.hash.mode, content).digest()).rstrip(b"=").decode()
        if digest != file.hash.value or len(content) != file.size:
            wrong.append(str(file))
    return wrong


def test_alpa_is_what_its_wheel_installed_after_it_was_used() -> None:
    assert run_python(USE_ALPA).split() == ["128.0"]
    assert distribution("alpa").version == "0.2.3"
    assert _mismatches(distribution("alpa")) == []


def test_the_check_of_alpas_files_covers_all_of_its_modules() -> None:
    alpa = distribution("alpa")
    assert alpa.files is not None
    hashed = {Path(str(file.locate())) for file in alpa.files if file.hash is not None and file.suffix == ".py"}
    package = Path(str(alpa.locate_file("alpa")))
    assert hashed >= set(package.rglob("*.py"))
    assert len(hashed) > 50
