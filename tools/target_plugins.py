"""The wheels with the compilers of GPUs and TPUs, as requirements: `python tools/target_plugins.py`, a line each.

Takes nothing; prints what the extras `gpu-target` and `tpu-target` install with the jax of this environment, and only
the wheels that a compiler is in, for `pip install --no-deps`. Invariant: versions are those that jax itself names.
"""

import sys
from importlib import metadata

from packaging.requirements import Requirement

# The extras of jax behind ours, and what has a compiler in it.
_EXTRAS = ("cuda12-local", "tpu")
_NEEDED = ("jax-cuda12-plugin", "libtpu")


def main() -> None:
    """Print the requirements."""
    for text in metadata.requires("jax") or ():
        found = Requirement(text)
        if found.name not in _NEEDED or found.marker is None:
            continue
        if any(found.marker.evaluate({"extra": extra}) for extra in _EXTRAS):
            sys.stdout.write(f"{found.name}{found.specifier}\n")
            if found.name == "jax-cuda12-plugin":
                sys.stdout.write(f"jax-cuda12-pjrt{found.specifier}\n")


if __name__ == "__main__":
    main()
