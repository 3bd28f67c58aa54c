"""`CFPShardParallel` and `CFPPipeshardParallel`: alpa's methods with CFP in the place of Alpa's ILP."""

from collections.abc import Sequence
from typing import Any

import alpa

from alpa_cfp.alpa.option import CFPOption
from alpa_cfp.alpa.pipelines import ExtendedPipeshardParallel
from alpa_cfp.errors import OptionError


class CFPShardParallel(alpa.ShardParallel):
    """Shard parallelism, planned by CFP.

    Args:
        devices: The devices, or a logical mesh over them; None for all devices of the cluster, in one axis.
        num_micro_batches: The number of micro-batches of a step, for gradient accumulation; None without.
        auto_sharding_option: How to plan; None for `CFPOption()`.
        manual_sharding_option: Given shardings of inputs and outputs.

    Raises:
        OptionError: the option is not a `CFPOption`.
    """

    def __init__(
        self,
        devices: Any = None,
        num_micro_batches: int | None = None,
        auto_sharding_option: CFPOption | None = None,
        manual_sharding_option: Any = None,
    ) -> None:
        option = _checked("auto_sharding_option", auto_sharding_option)
        super().__init__(devices, num_micro_batches, option, manual_sharding_option)


class CFPPipeshardParallel(ExtendedPipeshardParallel):
    """Pipeline parallelism of alpa, with stages that CFP plans.

    Args:
        devices: The devices, as alpa's `VirtualPhysicalMesh`; None for all of the cluster, or of this process.
        num_micro_batches: The number of micro-batches of a step.
        default_auto_sharding_option: How to plan; None for `CFPOption()`.
        pipeline_schedule: The order in which micro-batches run: one of alpa's, "interleaved_1f1b", "zero_bubble" or
            "auto"; see `ExtendedPipeshardParallel`.
        virtual_stages: With "interleaved_1f1b", the number of stages of each mesh; None for the fastest.

    The other arguments are those of `alpa.PipeshardParallel`.

    Raises:
        OptionError: the option is not a `CFPOption`, or the number of virtual stages is wrong; as the function is
            compiled: it has fewer layers than there are to be stages.
    """

    def __init__(
        self,
        devices: Any = None,
        num_micro_batches: int = 1,
        default_auto_sharding_option: CFPOption | None = None,
        pipeline_schedule: str = "1f1b",
        layer_option: Any = None,
        stage_option: Any = None,
        stage_input_shardings: Sequence[Any] | None = None,
        manual_sharding_option: Any = None,
        virtual_stages: int | None = None,
    ) -> None:
        super().__init__(
            devices,
            num_micro_batches,
            _checked("default_auto_sharding_option", default_auto_sharding_option),
            pipeline_schedule,
            layer_option,
            stage_option,
            stage_input_shardings,
            manual_sharding_option,
            virtual_stages,
        )


def _checked(name: str, given: CFPOption | None) -> CFPOption:
    option = CFPOption() if given is None else given
    if not isinstance(option, CFPOption):
        raise OptionError("CFPOption", name, option, "a method of CFP takes a CFPOption")
    return option
