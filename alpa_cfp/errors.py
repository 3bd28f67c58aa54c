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


class PlanError(CFPError, ValueError):
    """A plan cannot be used."""

    @classmethod
    def unreadable(cls, source: str, reason: str) -> "PlanError":
        """A text is no plan."""
        return cls(
            f"{source} is no plan that this version can read: {reason}. Make it again: plan without it, and save"
        )

    @classmethod
    def other_program(cls) -> "PlanError":
        """The plan was made for something else."""
        return cls(
            "the plan is for another program: another function, other shapes, another optimizer, or another version of "
            "JAX or flax traced it. Leave CFPOption(plan=...) out to make a new one"
        )

    @classmethod
    def other_mesh(cls, planned: tuple[int, ...], given: tuple[int, ...]) -> "PlanError":
        """The plan was made for a mesh of another shape."""
        shapes = ("x".join(map(str, shape)) for shape in (planned, given))
        return cls("the plan is for a {} mesh and this is a {} mesh: give a mesh of that shape".format(*shapes))
