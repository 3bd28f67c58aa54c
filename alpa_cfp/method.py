"""`CFPShardParallel`: `alpa.ShardParallel` with CFP in the place of Alpa's ILP."""

from typing import Any

import alpa

from alpa_cfp.errors import OptionError
from alpa_cfp.option import CFPOption


class CFPShardParallel(alpa.ShardParallel):
    """Shard parallelism, planned by CFP.

    Args:
        devices: The devices, or a logical mesh over them; None for all devices of the cluster, in one axis.
        num_micro_batches: The number of micro-batches of a step, for gradient accumulation; None without.
        auto_sharding_option: How to plan; None for `CFPOption()`.
        manual_sharding_option: Shardings of inputs and outputs that are given.

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
        option = CFPOption() if auto_sharding_option is None else auto_sharding_option
        if not isinstance(option, CFPOption):
            raise OptionError("auto_sharding_option", option, "CFPShardParallel takes a CFPOption")
        super().__init__(devices, num_micro_batches, option, manual_sharding_option)
