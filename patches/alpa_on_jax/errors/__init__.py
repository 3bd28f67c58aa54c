"""Every error that a user of alpa on stock JAX can cause, worded once: what failed, the value, why, what to do.

Takes the values that were wrong and gives back exceptions; nothing here looks at the system. Each class also derives
from the built-in exception that Python code would expect in its place, so that `except ImportError` or
`except TypeError` around a call into alpa keep working.
"""

from alpa_cfp.spmd.errors import (
    ClusterError,
    HostCallbackError,
    HostProgramError,
    IndivisibleShardingError,
    InternalError,
    KeyKindError,
    NamedMeshError,
    NoPortError,
    ShardingOptionError,
)
from alpa_on_jax.errors.base import AlpaOnJaxError, DataFileError
from alpa_on_jax.errors.clusters import (
    ClusterAuthenticationError,
    ClusterResourcesError,
    HostError,
    MeshEndedError,
    MeshLostError,
    NoClusterError,
)
from alpa_on_jax.errors.functions import (
    ArgnumsError,
    DonationError,
    GradientMarkerError,
    LayerMarkerError,
    MicroBatchError,
    NotAnArrayError,
    NotCallableError,
    NotJittableError,
)
from alpa_on_jax.errors.installation import (
    AlpaMissingError,
    AlpaShadowedError,
    AlpaVersionError,
    JaxVersionError,
    RayMissingError,
    RayNameError,
    SolverMissingError,
)
from alpa_on_jax.errors.methods import (
    FollowError,
    MeshShapeError,
    MethodError,
    MethodOptionError,
    NoStagesError,
    StageOptionError,
    StagePlanError,
)
from alpa_on_jax.errors.shardings import (
    AutoShardingInfeasibleError,
    BatchDimError,
    HeuristicError,
    HybridShardingError,
)
from alpa_on_jax.errors.unavailable import NeedsForkError

__all__ = [
    "AlpaMissingError",
    "AlpaOnJaxError",
    "AlpaShadowedError",
    "AlpaVersionError",
    "ArgnumsError",
    "AutoShardingInfeasibleError",
    "BatchDimError",
    "ClusterAuthenticationError",
    "ClusterError",
    "ClusterResourcesError",
    "DataFileError",
    "DonationError",
    "FollowError",
    "GradientMarkerError",
    "HeuristicError",
    "HostCallbackError",
    "HostError",
    "HostProgramError",
    "HybridShardingError",
    "IndivisibleShardingError",
    "InternalError",
    "JaxVersionError",
    "KeyKindError",
    "LayerMarkerError",
    "MeshEndedError",
    "MeshLostError",
    "MeshShapeError",
    "MethodError",
    "MethodOptionError",
    "MicroBatchError",
    "NamedMeshError",
    "NeedsForkError",
    "NoClusterError",
    "NoPortError",
    "NoStagesError",
    "NotAnArrayError",
    "NotCallableError",
    "NotJittableError",
    "RayMissingError",
    "RayNameError",
    "ShardingOptionError",
    "SolverMissingError",
    "StageOptionError",
    "StagePlanError",
]
