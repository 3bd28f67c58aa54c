"""Features of Alpa that need functions of its fork of jaxlib, which stock jaxlib does not have."""

from alpa_on_jax.errors.base import AlpaOnJaxError


class NeedsForkError(AlpaOnJaxError, NotImplementedError):
    """Something was asked for that only Alpa's fork of jaxlib can do."""

    @classmethod
    def overlapping(cls) -> "NeedsForkError":
        return cls(
            "alpa.global_config.enable_overlapping=True needs functions of Alpa's fork of jaxlib, by which a transfer "
            "waits for a part of a program. Leave it False: programs and transfers between meshes wait for each other "
            "as whole ones, and the results are the same"
        )

    @classmethod
    def profiling(cls, function: str) -> "NeedsForkError":
        return cls(
            f"{function} builds its programs by XlaBuilder, which stock jaxlib does not have. To plan by measured "
            "times, use alpa_cfp.CFPShardParallel, which measures parts of the program itself. A file that profile_all "
            "wrote elsewhere can still be loaded"
        )

    @classmethod
    def hlo_cost_model(cls) -> "NeedsForkError":
        return cls(
            "AutoStageOption(use_hlo_cost_model=True) estimates stages by a cost model in Alpa's fork of jaxlib, from "
            "times of single ops that only the fork can measure. Leave it False: stages are timed on the cluster"
        )
