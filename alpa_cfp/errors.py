"""The errors that a user of CFP can cause. Each text has the failure, the value, the usual cause and the fix."""

from collections.abc import Mapping, Sequence

from alpa_cfp import quantities


class CFPError(Exception):
    """Base class of the errors of CFP."""


class OptionError(CFPError, ValueError):
    """An option has a wrong value."""

    def __init__(self, option: str, field: str, value: object, rule: str) -> None:
        super().__init__(f"{option}({field}={value!r}): {rule}")

    @classmethod
    def not_whole(cls, option: str, field: str, value: object, least: int) -> "OptionError":
        """The value is no whole number, or too small."""
        return cls(option, field, value, f"it must be a whole number of at least {least}")


class NoDevicesError(CFPError, RuntimeError):
    """Costs cannot be measured, because the mesh has no devices in this process, or cannot be modelled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)

    @classmethod
    def not_here(cls, mesh_shape: tuple[int, ...]) -> "NoDevicesError":
        return cls(
            f"CFPOption(costs='measure') wants to run programs on the {quantities.mesh(mesh_shape)}, which has "
            "no devices in this process. Say CFPOption(costs='estimate'), or give a mesh of local devices"
        )

    @classmethod
    def of_target(cls, target: str) -> "NoDevicesError":
        return cls(
            f"CFPOption(costs='measure') wants to run programs on {target}, which is a target: its devices are not "
            "here. Say CFPOption(costs='compile') to compile them for it and to model their time"
        )

    @classmethod
    def cannot_run(cls, target: str) -> "NoDevicesError":
        return cls(
            f"nothing can run on {target}, which is a target: its devices are not here. Give plan.jit a mesh of "
            "devices of this process, or none where the plan was made on such devices"
        )

    @classmethod
    def no_target(cls, mesh_shape: tuple[int, ...]) -> "NoDevicesError":
        return cls(
            f"CFPOption(costs='compile') compiles programs for a target, and the {quantities.mesh(mesh_shape)} is none "
            "of a target. Give alpa_cfp.target('h100:1x8').mesh(...), or say CFPOption(costs='measure')"
        )


class NoRunnablePlanError(CFPError, RuntimeError):
    """None of the best plans could be compiled and run."""

    def __init__(self, failures: Sequence[str]) -> None:
        self.failures = tuple(failures)
        super().__init__(
            f"none of the {len(self.failures)} best plans could be compiled and timed end to end. The first one: "
            f"{self.failures[0] if self.failures else 'there was none'}. Where memory ran out, give "
            "CFPOption(memory_budget_bytes=...); CFPOption(refine=0) takes the best predicted plan without running it"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (NoRunnablePlanError, (self.failures,))


class PlanError(CFPError, ValueError):
    """A plan cannot be used."""

    @classmethod
    def unreadable(cls, source: str, reason: str) -> "PlanError":
        """The text is no plan."""
        return cls(
            f"{source} is no plan that this version can read: {reason}. Make it again: plan without it, and save"
        )

    @classmethod
    def other_program(cls) -> "PlanError":
        """The plan is for another program."""
        return cls(
            "the plan is for another program: another function, other shapes, another optimizer, or another version of "
            "JAX or flax traced it. Make a new one: leave CFPOption(plan=...) out, or call alpa_cfp.autoshard again"
        )

    @classmethod
    def other_mesh(cls, planned: tuple[int, ...], given: tuple[int, ...]) -> "PlanError":
        """The plan is for a mesh of another shape."""
        own, other = quantities.a_mesh(planned), quantities.a_mesh(given)
        return cls(f"the plan is for {own} and this is {other}: give a mesh of the plan's shape")

    @classmethod
    def without_signature(cls) -> "PlanError":
        """The plan was made through alpa, and cannot run without it."""
        return cls(
            "the plan was made through alpa and knows nothing of a function's arguments. Give it to "
            "CFPOption(plan=...), or make one by alpa_cfp.autoshard"
        )

    @classmethod
    def other_arguments(cls, what: str) -> "PlanError":
        """A planned function has other arguments or results than the plan."""
        return cls(f"the plan is for other arguments: {what}. Make a plan for these by alpa_cfp.autoshard")

    @classmethod
    def not_global(cls, path: str, kind: str) -> "PlanError":
        """A value of one process is to be split over several."""
        return cls(
            f"{path} is a {kind} of this process alone, and is split over several processes: make a global array of it "
            "by jax.make_array_from_process_local_data(sharding, value), with the sharding that compile(...) of the "
            "planned function has among its input_shardings"
        )

    @classmethod
    def transformed(cls, transformation: str) -> "PlanError":
        """A planned function is called inside a transformation that would change its program."""
        return cls(
            f"{transformation} cannot go through a planned function, which is a whole program, partitioned for its "
            "shapes. Plan the function that is the whole step, with what transforms it"
        )

    @classmethod
    def own_random_state(cls) -> "PlanError":
        """A planned program with a random state of its own is to be part of another one."""
        return cls(
            "the function draws random numbers by jax.lax.rng_uniform, from a state outside of the program: it runs by "
            "calls of plan.jit(fn) only, and cannot be lowered, exported or called inside jax.jit. Draw by jax.random"
        )

    @classmethod
    def not_compiled(cls) -> "PlanError":
        """The program of a planned function is read before it is compiled."""
        return cls("the planned function is not compiled yet: call it, or its compile(...) with arguments, first")

    @classmethod
    def not_planned(cls) -> "PlanError":
        """The plan of a decorated function is read before there is one."""
        return cls("the function is not planned yet: call it, or its plan_for(...) with arguments, first")

    @classmethod
    def no_devices(cls, reason: str) -> "PlanError":
        """The devices of the plan do not exist in this process."""
        return cls(f"{reason}. Say on which devices to run: plan.jit(fn, mesh)")

    @classmethod
    def other_axes(cls, planned: tuple[str, ...], given: tuple[object, ...]) -> "PlanError":
        """The plan is for a mesh with other axis names."""
        return cls(f"the plan is for a mesh with the axes {planned} and this one has {given}: call them alike")


class MicroBatchError(CFPError, ValueError):
    """A function cannot be computed in micro-batches."""

    @classmethod
    def no_argument(cls, positions: Sequence[int], count: int) -> "MicroBatchError":
        """A position is that of no positional argument."""
        return cls(
            f"batch_argnums={tuple(positions)} names arguments by their positions, of which there are {count}: what "
            "has samples cannot be a keyword argument"
        )

    @classmethod
    def unequal(cls, numbers: Sequence[int]) -> "MicroBatchError":
        """There are no samples, or arguments have different numbers of them."""
        return cls(
            f"the arguments at batch_argnums have {list(numbers) or 'no'} samples along their first dims: name "
            "arguments whose arrays all have the same number"
        )

    @classmethod
    def not_divided(cls, samples: int, count: int) -> "MicroBatchError":
        """The samples cannot be divided into so many parts."""
        return cls(f"{samples} samples cannot be divided into {count} equal parts")

    @classmethod
    def explicit(cls) -> "MicroBatchError":
        """Arguments have shardings in their types."""
        return cls(
            "in_micro_batches takes no arrays with shardings in their types (Explicit mode): make the mesh with "
            "axis_types=(jax.sharding.AxisType.Auto, ...)"
        )

    @classmethod
    def not_separate(cls, reason: str) -> "MicroBatchError":
        """Samples are not computed by themselves, or not summed."""
        return cls(f"the function does not compute each sample by itself and sum them up: {reason}")


class AutoshardError(CFPError, ValueError):
    """An argument of `autoshard` is wrong."""

    @classmethod
    def axes(cls, axis_names: tuple[object, ...], most: int) -> "AutoshardError":
        """The mesh has no axes, too many axes, or axis names that are not texts."""
        return cls(f"a mesh for autoshard has one to {most} axes, each with a text as its name, and not {axis_names}")

    @classmethod
    def no_mesh(cls, mesh: object) -> "AutoshardError":
        """The second argument is no mesh."""
        return cls(
            f"autoshard(fn, mesh, *args) wants a jax.sharding.Mesh or AbstractMesh, not {type(mesh).__name__}. "
            'For example jax.sharding.Mesh(numpy.array(jax.devices()), ("x",))'
        )

    @classmethod
    def mesh_first(cls) -> "AutoshardError":
        """Arguments follow a mesh that comes first."""
        return cls(
            "autoshard(mesh, ...) with the mesh first is a decorator and takes keyword arguments only, as in "
            "@autoshard(mesh, donate_argnums=0). To plan at once, the function comes first: autoshard(fn, mesh, *args)"
        )

    @classmethod
    def no_array(cls, path: str, value: object) -> "AutoshardError":
        """A leaf of the arguments is no array."""
        return cls(
            f"{path} is a {type(value).__name__}, and not an array, a number or a jax.ShapeDtypeStruct. Bind what is "
            "no array beforehand: functools.partial(fn, ...)"
        )

    @classmethod
    def no_prefix(cls, what: str, reason: str) -> "AutoshardError":
        """`in_shardings` or `out_shardings` has another structure than the arguments or the result."""
        return cls(
            f"{what} is no prefix of the {'arguments' if what == 'in_shardings' else 'result'}: {reason}. As for "
            "jax.jit, it is a pytree with a sharding, a PartitionSpec or None in the place of arrays or of whole parts"
        )

    @classmethod
    def no_sharding(cls, path: str, sharding: object) -> "AutoshardError":
        """What is given as a sharding is none over named axes."""
        return cls(
            f"{path}: a {type(sharding).__name__} says nothing about the axes of the mesh. Give a "
            "jax.sharding.NamedSharding or PartitionSpec, or None to leave it to the plan"
        )

    @classmethod
    def other_mesh(cls, path: str, named: Mapping[str, int], planned: Mapping[str, int]) -> "AutoshardError":
        """A sharding is over a mesh with other axes."""
        return cls(f"{path}: its sharding is over the axes {dict(named)}, and the plan is for {dict(planned)}")

    @classmethod
    def too_many_dims(cls, path: str, spec: object, shape: tuple[int, ...]) -> "AutoshardError":
        """A `PartitionSpec` has more entries than the array has dims."""
        return cls(f"{path}: {spec} has more entries than an array of shape {shape} has dims")

    @classmethod
    def unknown_axis(cls, path: str, spec: object, axis: object, axes: tuple[str, ...]) -> "AutoshardError":
        """A `PartitionSpec` names an axis that the mesh does not have."""
        return cls(f"{path}: {spec} names the axis {axis!r}, and the mesh has {', '.join(map(repr, axes))}")

    @classmethod
    def uneven(cls, path: str, spec: object, dim: int, size: int, count: int) -> "AutoshardError":
        """A dim is no multiple of the number of its parts."""
        return cls(
            f"{path}: {spec} splits dim {dim} of size {size} into {count} parts, which are not equal. Arguments and "
            "results are split evenly: change the shape, or leave that dim out"
        )

    @classmethod
    def contradiction(cls, path: str, said: object, own: object) -> "AutoshardError":
        """An argument's own sharding is not that of `in_shardings`."""
        return cls(
            f"{path}: in_shardings asks for {said} and the argument lies as {own} (for each dim the mesh axes that "
            "split it, None where it is free), and both cannot hold. Move the argument first with jax.device_put, "
            "leave it out of in_shardings, or give its shape alone as a jax.ShapeDtypeStruct"
        )

    @classmethod
    def not_obeyed(cls, path: str, asked: object, found: object) -> "AutoshardError":
        """A plan does not do what was asked: a mistake of the planner."""
        return cls(
            f"{path}: {asked} was asked for and the plan has {found}. This is a mistake in alpa_cfp, not in your "
            "program: please report it"
        )


class ProfilingError(CFPError, RuntimeError):
    """Programs cannot be measured."""

    @classmethod
    def no_worker(cls, reason: str) -> "ProfilingError":
        """The process for measuring cannot be used."""
        return cls(
            f"there is no process of its own for profiling: {reason}. CFPOption(costs='estimate') plans without "
            "measuring, CFPOption(costs='replay') from what was measured elsewhere"
        )

    @classmethod
    def no_mesh(cls, attempts: int, reasons: Sequence[str]) -> "ProfilingError":
        """No mesh of the hosts can be used for measuring."""
        return cls(
            f"no mesh of these hosts can be measured on, tried {attempts} times: {'; '.join(reasons)}. What was "
            "measured is kept. CFPOption(costs='replay') plans from it, CFPOption(costs='estimate') without measuring"
        )

    @classmethod
    def no_free_submesh(cls, num_hosts: int, num_devices: int, limit_s: float) -> "ProfilingError":
        """The cluster has no free devices for measuring a stage."""
        return cls(
            f"a stage is planned for {num_hosts} hosts x {num_devices} devices, and for {limit_s:g} s no host of the "
            "cluster had so many free to measure on: another mesh of this program holds them. Shut it down before, or "
            "plan from what was measured before by CFPOption(costs='replay')"
        )


class ProcessesError(CFPError, RuntimeError):
    """The processes of a mesh could not plan together."""

    @classmethod
    def not_initialized(cls, processes: Sequence[int]) -> "ProcessesError":
        """The processes have no way to find each other."""
        return cls(
            f"the mesh has devices of the processes {_numbers(processes)}, which cannot find each other. Call "
            "jax.distributed.initialize() in each of them first"
        )

    @classmethod
    def not_together(cls, processes: Sequence[int], missing: Sequence[int], limit_s: float) -> "ProcessesError":
        """Some processes have not called `autoshard`."""
        return cls(
            f"the mesh has devices of the processes {_numbers(processes)}, and of these {_numbers(missing)} did not "
            f"call autoshard within {limit_s:g} s. All processes of a mesh call it, in the same order"
        )

    @classmethod
    def other_programs(cls, first: int, differences: Sequence[tuple[int, str]]) -> "ProcessesError":
        """The processes want plans for different programs or meshes."""
        others = "; ".join(f"process {process} has {what}" for process, what in differences)
        return cls(
            f"the processes do not plan the same as process {first}: {others}. All processes of a mesh call autoshard "
            "with the same function, arguments of the same shapes and the same mesh"
        )

    @classmethod
    def lost(cls, process: int, reason: str) -> "ProcessesError":
        """A process is gone."""
        return cls(
            f"process {process} was lost while the processes planned together: {reason}. Its own output says more. "
            "Start the program again: what was measured is kept"
        )

    @classmethod
    def failed(cls, process: int, error: str) -> "ProcessesError":
        """A process cannot go on, because of an error of its own."""
        return cls(f"planning ended in process {process}, and so in all of the mesh: {error}")


def _numbers(processes: Sequence[int]) -> str:
    first = ", ".join(map(str, processes[:_NAMED_PROCESSES]))
    more = len(processes) - _NAMED_PROCESSES
    return f"{first} and {more} more" if more > 0 else first


_NAMED_PROCESSES = 8


class HostsMeshError(CFPError, ValueError):
    """The mesh and its hosts have different numbers of devices."""

    def __init__(self, mesh: str, hosts: int, devices_per_host: int) -> None:
        self._given = (mesh, hosts, devices_per_host)
        super().__init__(
            f"the {mesh} mesh does not have the devices of {hosts} host{'s' * (hosts > 1)} x {devices_per_host}: give "
            f"--mesh {hosts}x{devices_per_host}, or other --hosts or --devices-per-host"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (HostsMeshError, self._given)


class HostsError(CFPError, RuntimeError):
    """A host of a Ray cluster failed."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"a host of the Ray cluster failed or was lost: {reason}. All that was started there is ended. Once the "
            "hosts are well, the same command goes on from the profiles that it has by now"
        )


class ReplayError(CFPError, LookupError):
    """The database lacks profiles that a plan by replay needs."""

    @classmethod
    def no_profiles(
        cls, mesh_shape: Sequence[int], named: dict[str, str], known: Sequence[tuple[Sequence[int], str]]
    ) -> "ReplayError":
        """There are no profiles of this mesh."""
        devices = "".join(f" with {name}={value!r}" for name, value in named.items())
        has = "; ".join(f"{quantities.shape(shape)} on {name}" for shape, name in known) or "none at all"
        return cls(
            f"the profile database has no profiles of {quantities.a_mesh(mesh_shape)}{devices}. It has: {has}. "
            "Measure there first, or name the database in which you have (CFPOption(database=...))"
        )

    @classmethod
    def several_devices(
        cls, mesh_shape: Sequence[int], found: Sequence[str], differing: Sequence[str], *, kind_tells: bool
    ) -> "ReplayError":
        """There are profiles of several descriptions of devices, and the options select none.

        Args:
            mesh_shape: The logical mesh's.
            found: The descriptions.
            differing: The fields of a profile's key in which they differ.
            kind_tells: Whether `device_kind` alone tells them apart.
        """
        if kind_tells:
            todo = "Say which are meant: CFPOption(device_kind=...)"
        elif list(differing) == ["jaxlib_version"]:
            todo = (
                "Put those of one version into a database of their own (alpa-cfp profiles export FILE --jaxlib VERSION "
                "and alpa-cfp profiles import FILE --database NEW) and name it: CFPOption(database=NEW)"
            )
        else:
            todo = (
                "No option selects by all of these. Put the profiles that are meant into a database of their own, by "
                "the fields of their keys (ProfileDatabase.items and put), and name it: CFPOption(database=NEW)"
            )
        return cls(
            f"the profile database has profiles of {quantities.a_mesh(mesh_shape)} on {len(found)} kinds of "
            f"devices or compilers: {'; '.join(found)}. They differ in {' and '.join(differing)}. {todo}"
        )

    @classmethod
    def missing(cls, names: Sequence[str], of: int, devices: str) -> "ReplayError":
        """Some programs have no profile."""
        first = ", ".join(names[:_NAMED])
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return cls(
            f"{len(names)} of {of} programs have no profile on {devices}: {first}{more}. The function, its shapes, the "
            "mesh or the version of JAX is another one than when they were measured, or measuring was broken off: "
            "measure there once more"
        )


_NAMED = 5
