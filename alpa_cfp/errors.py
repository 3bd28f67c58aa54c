"""Every error that a user of CFP can cause, worded once: what failed, the value, why, what to do."""

from collections.abc import Sequence


class CFPError(Exception):
    """Of CFP."""


class OptionError(CFPError, ValueError):
    """A field of an option has a value that it cannot have."""

    def __init__(self, option: str, field: str, value: object, rule: str) -> None:
        super().__init__(f"{option}({field}={value!r}): {rule}")


class NoDevicesError(CFPError, RuntimeError):
    """Costs are to be measured on a mesh that has no devices here."""

    def __init__(self, mesh_shape: tuple[int, ...]) -> None:
        super().__init__(
            f"CFPOption(costs='measure') wants to run programs on the {'x'.join(map(str, mesh_shape))} mesh, which has "
            "no devices in this process. Say CFPOption(costs='estimate'), or give a mesh of local devices"
        )


class NoRunnablePlanError(CFPError, RuntimeError):
    """None of the best plans could be compiled and run whole."""

    def __init__(self, failures: Sequence[str]) -> None:
        self.failures = tuple(failures)
        super().__init__(
            f"none of the {len(self.failures)} best plans could be compiled and run whole. The first one: "
            f"{self.failures[0] if self.failures else 'there was none'}. Where memory ran out, give "
            "CFPOption(memory_budget_bytes=...); CFPOption(refine=0) takes the best predicted plan without running it"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (NoRunnablePlanError, (self.failures,))


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
            "JAX or flax traced it. Make a new one: leave CFPOption(plan=...) out, or call alpa_cfp.autoshard again"
        )

    @classmethod
    def other_mesh(cls, planned: tuple[int, ...], given: tuple[int, ...]) -> "PlanError":
        """The plan was made for a mesh of another shape."""
        shapes = ("x".join(map(str, shape)) for shape in (planned, given))
        return cls("the plan is for a {} mesh and this is a {} mesh: give a mesh of that shape".format(*shapes))

    @classmethod
    def without_signature(cls) -> "PlanError":
        """The plan was made through alpa, and is to run without it."""
        return cls(
            "the plan was made through alpa and knows nothing of a function's arguments. Give it to "
            "CFPOption(plan=...), or make one by alpa_cfp.autoshard"
        )

    @classmethod
    def other_arguments(cls, what: str) -> "PlanError":
        """A planned function is called with other arguments, or gives other results, than were planned."""
        return cls(f"the plan is for other arguments: {what}. Make a plan for these by alpa_cfp.autoshard")

    @classmethod
    def traced_arguments(cls) -> "PlanError":
        """A planned function is called by one that jax is tracing."""
        return cls(
            "a planned function is a whole program: it cannot be called inside jax.jit, jax.grad or jax.vmap. Plan the "
            "function that is the whole step"
        )

    @classmethod
    def not_compiled(cls) -> "PlanError":
        """A planned function is asked for its program, and has none yet."""
        return cls("the planned function is not compiled yet: call it, or its compile(...) with arguments, first")

    @classmethod
    def no_devices(cls, reason: str) -> "PlanError":
        """The devices that a plan was made on are not here."""
        return cls(f"{reason}. Say on which devices to run: plan.jit(fn, mesh)")

    @classmethod
    def other_axes(cls, planned: tuple[str, ...], given: tuple[object, ...]) -> "PlanError":
        """The plan was made for a mesh whose axes are called otherwise."""
        return cls(f"the plan is for a mesh with the axes {planned} and this one has {given}: call them alike")


class AutoshardError(CFPError, ValueError):
    """`autoshard` is given what it cannot plan."""

    @classmethod
    def axes(cls, axis_names: tuple[object, ...]) -> "AutoshardError":
        """A mesh of none or too many axes, or whose axes are not called by texts."""
        return cls(f"a mesh for autoshard has one or two axes, each with a text as its name, and not {axis_names}")

    @classmethod
    def no_mesh(cls, mesh: object) -> "AutoshardError":
        """The second argument is no mesh."""
        return cls(
            f"autoshard(fn, mesh, *args) wants a jax.sharding.Mesh or AbstractMesh, not {type(mesh).__name__}. "
            'For example jax.sharding.Mesh(numpy.array(jax.devices()), ("x",))'
        )

    @classmethod
    def no_array(cls, path: str, value: object) -> "AutoshardError":
        """A leaf of the arguments is no array."""
        return cls(
            f"{path} is a {type(value).__name__}, and not an array, a number or a jax.ShapeDtypeStruct. Bind what is "
            "no array beforehand: functools.partial(fn, ...)"
        )

    @classmethod
    def already_sharded(cls, primitives: tuple[str, ...]) -> "AutoshardError":
        """The function says itself where arrays lie."""
        return cls(
            f"the function decides itself how arrays are split, by {', '.join(primitives)}: that is what autoshard is "
            "to decide. Leave it out (jax.lax.with_sharding_constraint, jax.shard_map, jax.reshard)"
        )


class ProfilingError(CFPError, RuntimeError):
    """Programs cannot be measured."""

    @classmethod
    def no_worker(cls, reason: str) -> "ProfilingError":
        """The process that is to measure cannot do so."""
        return cls(
            f"there is no process of its own for profiling: {reason}. CFPOption(costs='estimate') plans without "
            "measuring, CFPOption(costs='replay') from what was measured elsewhere"
        )

    @classmethod
    def no_mesh(cls, attempts: int, reasons: Sequence[str]) -> "ProfilingError":
        """There is no mesh of several hosts to measure on."""
        return cls(
            f"no mesh of these hosts can be measured on, tried {attempts} times: {'; '.join(reasons)}. What was "
            "measured is kept. CFPOption(costs='replay') plans from it, CFPOption(costs='estimate') without measuring"
        )

    @classmethod
    def no_free_submesh(cls, num_hosts: int, num_devices: int, limit_s: float) -> "ProfilingError":
        """The cluster has no devices for the stage that is to be planned."""
        return cls(
            f"a stage is planned for {num_hosts} hosts x {num_devices} devices, and for {limit_s:g} s no host of the "
            "cluster had so many free to measure on: another mesh of this program holds them. Shut it down before, or "
            "plan from what was measured before by CFPOption(costs='replay')"
        )


class HostsMeshError(CFPError, ValueError):
    """A mesh is wanted over hosts that have another number of devices."""

    def __init__(self, mesh: str, hosts: int, devices_per_host: int) -> None:
        self._given = (mesh, hosts, devices_per_host)
        super().__init__(
            f"a {mesh} mesh does not have the devices of {hosts} host{'s' * (hosts > 1)} x {devices_per_host}: give "
            f"--mesh {hosts}x{devices_per_host}, or other --hosts or --devices-per-host"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (HostsMeshError, self._given)


class HostsError(CFPError, RuntimeError):
    """A host of a Ray cluster failed while it was needed."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"a host of the Ray cluster failed or was lost: {reason}. All that was started there is ended. Once the "
            "hosts are well, the same command goes on from the profiles that it has by now"
        )


class ReplayError(CFPError, LookupError):
    """The database lacks what a plan from recorded profiles needs."""

    @classmethod
    def no_profiles(
        cls, mesh_shape: Sequence[int], named: dict[str, str], known: Sequence[tuple[Sequence[int], str]]
    ) -> "ReplayError":
        """No profile was made on such a mesh."""
        devices = "".join(f" with {name}={value!r}" for name, value in named.items())
        has = "; ".join(f"{_by(shape)} on {name}" for shape, name in known) or "none at all"
        return cls(
            f"the profile database has no profiles of a {_by(mesh_shape)} mesh{devices}. It has: {has}. Measure there "
            "first, or name the database in which you have (CFPOption(database=...))"
        )

    @classmethod
    def several_devices(cls, mesh_shape: Sequence[int], found: Sequence[str]) -> "ReplayError":
        """Profiles were made on several kinds of devices, and none is named."""
        return cls(
            f"the profile database has profiles of a {_by(mesh_shape)} mesh on {len(found)} kinds of devices: "
            f"{'; '.join(found)}. Say which are meant (CFPOption(device_kind=...)), or take another database, without "
            "the others (ProfileDatabase.prune on a copy)"
        )

    @classmethod
    def missing(cls, names: Sequence[str], of: int, devices: str) -> "ReplayError":
        """Programs have no profile."""
        first = ", ".join(names[:_NAMED])
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return cls(
            f"{len(names)} of {of} programs have no profile on {devices}: {first}{more}. The function, its shapes, the "
            "mesh or the version of JAX is another one than when they were measured, or measuring was broken off: "
            "measure there once more"
        )


_NAMED = 5


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
