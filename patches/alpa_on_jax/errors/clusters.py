"""What needs a cluster."""

from alpa_on_jax.errors.base import AlpaOnJaxError


class ClusterError(AlpaOnJaxError, RuntimeError):
    """alpa.init or alpa.shutdown cannot do what was asked."""


class ClusterUnavailableError(ClusterError, NotImplementedError):
    """`alpa.init` was asked for a cluster that is not available."""

    def __init__(self, cluster: str) -> None:
        super().__init__(
            f"alpa.init(cluster={cluster!r}): meshes that Ray manages are not available on stock JAX yet. Use all "
            'devices of this process: alpa.init(cluster="local"), or give the method devices=alpa.'
            "LocalPhysicalDeviceMesh(...)"
        )


class PipelineUnavailableError(AlpaOnJaxError, NotImplementedError):
    """`PipeshardParallel` was asked for."""

    def __init__(self) -> None:
        super().__init__(
            "alpa.PipeshardParallel needs meshes that Ray manages, which are not available on stock JAX yet. Use "
            "alpa.ShardParallel, or alpa.parallel_method.LocalPipelineParallel to debug a pipeline on one device"
        )
