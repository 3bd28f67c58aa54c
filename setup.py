"""Builds the distribution; everything that is not code stands in pyproject.toml.

Takes the two source roots (`.` for alpa_cfp, `patches` for alpa_on_jax), gives back a wheel that has, beside the
packages, one more file at its root: `alpa_on_jax.pth`. Python's `site` runs its one line at every start, and that line
registers the hook that makes `import alpa` work. Invariant: the file is part of the wheel, so it is listed in RECORD,
pip puts it into site-packages and `pip uninstall` takes it away again.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PTH_NAME = "alpa_on_jax.pth"

# `site` runs a line of a .pth file only if it starts with "import", and prints a traceback at every start of Python for
# one that raises. A package that was deleted by hand has nothing to hook and should not do that; anything else should.
PTH_LINE = (
    r'import sys; exec("try:\n import alpa_on_jax._startup\nexcept ModuleNotFoundError as error:\n '
    r"if not (error.name or '').startswith('alpa_on_jax'): raise" + '")\n'
)


class BuildWithStartupFile(build_py):
    """`build_py` that also puts the startup file where it becomes the root of the wheel."""

    def run(self) -> None:
        super().run()
        target = self._startup_file()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(PTH_LINE, encoding="utf-8")

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), str(self._startup_file())]

    def _startup_file(self) -> Path:
        # An editable wheel is not made of what stands in build_lib, but whatever lies where `install` would install to
        # goes into it.
        root = self.get_finalized_command("install").install_lib if self.editable_mode else self.build_lib
        return Path(root) / PTH_NAME


setup(cmdclass={"build_py": BuildWithStartupFile})
