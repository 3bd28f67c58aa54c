"""Makes ready what programs with linear algebra call, in a process that has lowered none itself.

Takes a module's bytecode and the platform that it is compiled for. On CPUs decompositions are calls of LAPACK, which
jaxlib has from scipy, on GPUs some are calls of MAGMA or of LAPACK on the host. JAX hands jaxlib these functions when
it lowers such an op. A process that is given a program, as those that measure and the hosts of a mesh are, has to do
it before the program runs: jaxlib would call a null pointer. Tested with jax 0.10.2 and 0.11.2:
`jax._src.lax.linalg.initialize_lapack`, `jaxlib.gpu_solver.initialize_hybrid_kernels`.
"""

from jax._src.lax import linalg
from jaxlib import gpu_solver

# MLIR's bytecode holds the names of targets as they are. A module that merely names an op so costs an import.
_LAPACK, _HYBRID = b"lapack_", b"hybrid_"


def prepare(bytecode: bytes, platform: str) -> None:
    """Make ready what `bytecode` calls on `platform` ("cpu", "gpu"); more than once has no effect."""
    if platform == "cpu" and _LAPACK in bytecode:
        linalg.initialize_lapack()
    elif platform != "cpu" and _HYBRID in bytecode:
        gpu_solver.initialize_hybrid_kernels()
