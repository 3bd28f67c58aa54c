"""Every error that a user of CFP can cause, worded once: what failed, the value, why, what to do."""


class CFPError(Exception):
    """Of CFP."""


class OptionError(CFPError, ValueError):
    """A field of `CFPOption` has a value that it cannot have."""

    def __init__(self, field: str, value: object, rule: str) -> None:
        super().__init__(f"CFPOption({field}={value!r}): {rule}")


class NoDevicesError(CFPError, RuntimeError):
    """Costs are to be measured on a mesh that has no devices here."""

    def __init__(self, mesh_shape: tuple[int, ...]) -> None:
        super().__init__(
            f"CFPOption(costs='measure') wants to run programs on the {'x'.join(map(str, mesh_shape))} mesh, which has "
            "no devices in this process. Say CFPOption(costs='estimate'), or give a mesh of local devices"
        )
