"""The errors of targets that a user can cause, each worded once: what failed, the value, why, what to do."""

from collections.abc import Sequence
from pathlib import Path

from alpa_cfp import quantities
from alpa_cfp.errors import CFPError

# The characters of a line that are shown at most.
SHOWN = 160
_EXAMPLES = "h100:1x8 is 1 host with 8 GPUs, v5e:4x4 a slice of 4 by 4 TPUs"


class TargetError(CFPError, ValueError):
    """A target, or the file of a chip, is wrong."""

    @classmethod
    def malformed(cls, text: object, reason: str) -> "TargetError":
        """The text names no target."""
        return cls(
            f"{text!r} is no target: {reason}. A target is a chip or the path of a chip's file, a colon, and sizes: "
            f"{_EXAMPLES}"
        )

    @classmethod
    def unknown_chip(cls, name: str, known: Sequence[str], close: Sequence[str] = ()) -> "TargetError":
        """There are no data of such a chip."""
        meant = f"Did you mean {close[0]}? " if close else ""
        return cls(
            f"there is no chip called {name!r}. {meant}The known ones are {', '.join(known)}; another one is a file "
            "in the same form as theirs (alpa_cfp/targets/data), named by its path: my_chip.toml:1x8"
        )

    @classmethod
    def too_many_devices(cls, chip: str, devices_per_host: int, most: int) -> "TargetError":
        """A host cannot have so many devices."""
        return cls(
            f"a host has up to {most} {chip}, and not {devices_per_host}. The first number is that of hosts: "
            f"{chip}:2x{most} is 2 hosts with {most} each. For other machines write a chip file with its own "
            "most_devices_per_host"
        )

    @classmethod
    def no_slice(cls, chip: str, shape: str, known: str, instead: str | None) -> "TargetError":
        """There are no slices of this shape."""
        meant = f"Write {chip}:{instead}. " if instead else ""
        return cls(f"there is no slice of {shape} {chip}. {meant}Its slices are {known}, as Google Cloud has them")

    @classmethod
    def no_mesh(cls, target: str, devices: int, shape: Sequence[int], names: Sequence[str]) -> "TargetError":
        """Sizes and names of axes are not those of a mesh of all devices."""
        return cls(
            f"{target} has {devices} devices, and a mesh of it has as many: not the sizes {tuple(shape)} with the "
            f"names {tuple(names)}. target({target!r}).mesh() has one axis"
        )

    @classmethod
    def no_parts(cls, target: str) -> "TargetError":
        """Stages of a pipeline have parts of a target, and there are none of a slice."""
        return cls(
            f"stages of a pipeline cannot have parts of {target}: libtpu compiles for whole slices only. Give a target "
            "of GPUs, or plan the step on the whole slice by autoshard"
        )

    @classmethod
    def no_links(cls, chip: str, capability: str, known: Sequence[int]) -> "TargetError":
        """What collectives take on a chip cannot be modelled."""
        return cls(
            f"what collectives take on {chip} cannot be modelled: it has the compute capability {capability!r}, and "
            f"NCCL has constants for {', '.join(f'{major}.x' for major in known)}; or its file lacks [inner] or [outer]"
        )

    @classmethod
    def unreadable_file(cls, path: Path, reason: str) -> "TargetError":
        """A chip's file cannot be read."""
        return cls(f"{path} cannot be read as the file of a chip: {reason}. It is TOML, in the form of {_FORM}")

    @classmethod
    def missing_field(cls, path: Path, field: str, rule: str) -> "TargetError":
        """A field of a chip's file is missing."""
        return cls(f"{path} lacks {field}: {rule}. The form is that of {_FORM}")

    @classmethod
    def wrong_field(cls, path: Path, field: str, value: object, rule: str) -> "TargetError":
        """A field of a chip's file has a wrong value."""
        return cls(f"{field} in {path} is {value!r}, but {rule}")

    @classmethod
    def unknown_field(cls, path: Path, field: str, known: Sequence[str]) -> "TargetError":
        """A chip's file has a field that means nothing, perhaps misspelt."""
        return cls(f"{path} has {field}, which means nothing there: take it out, or call it one of {', '.join(known)}")


_FORM = "alpa_cfp/targets/data/h100.toml (GPUs) or v5e.toml (TPUs)"


class TargetCompilerError(CFPError, RuntimeError):
    """The compiler of a target cannot be used in this environment."""

    @classmethod
    def missing(cls, package: str, kind: str, version: str, extra: str) -> "TargetCompilerError":
        """The plugin with the compiler is not installed."""
        return cls(
            f"compiling for {kind}s needs {package} {version}, which is not installed: pip install "
            f"'alpa_cfp[{extra}]'. No {kind} and no driver is needed"
        )

    @classmethod
    def untested(cls, package: str, found: str, jax: str, tested: Sequence[str], extra: str) -> "TargetCompilerError":
        """The plugin, or jax, has a version that the tests do not run with."""
        return cls(
            f"{package} {found} beside jax {jax} is not tested, and a plugin of another version can end the process or "
            f"compile another program. Tested are {'; '.join(tested)}: pip install 'alpa_cfp[{extra}]', which takes "
            "the plugin that belongs to jax"
        )

    @classmethod
    def not_registered(cls, reason: str) -> "TargetCompilerError":
        """JAX left out the plugin for GPUs when it looked for plugins."""
        return cls(
            f"jax does not offer the compiler for GPUs in this process: {reason}. JAX looks for plugins once, and "
            "leaves this one out where NVIDIA's libraries are missing: set JAX_PLATFORMS=cpu before the process starts"
        )

    @classmethod
    def not_described(cls, target: str, reason: str) -> "TargetCompilerError":
        """The compiler refuses the target."""
        return cls(
            f"the compiler does not know {target}: {reason}. For a chip of your own, compare its file with that of the "
            "nearest chip in alpa_cfp/targets/data"
        )

    @classmethod
    def part_of_slice(cls, devices: int, of: int) -> "TargetCompilerError":
        """A program is for some of the devices of a slice."""
        return cls(
            f"a program for {devices} of the {of} devices of a slice of TPUs cannot be compiled: TPUs are compiled for "
            f"a whole slice. Name a target with {quantities.plural(devices, 'device')}"
        )


class HloTextError(CFPError, ValueError):
    """A text is no scheduled program that can be read."""

    @classmethod
    def at(cls, line: int, text: str, problem: str) -> "HloTextError":
        """A line of it cannot be read."""
        shown = text.strip()[:SHOWN]
        return cls(
            f"line {line} of the scheduled program: {problem}: {shown!r}. Give the text of a compiled module as it is, "
            "compiled.as_text(); the extras gpu-target and tpu-target install the compilers whose texts are known"
        )

    @classmethod
    def no_module(cls, problem: str) -> "HloTextError":
        """It is not a compiled module at all."""
        return cls(f"this is no scheduled program: {problem}. Give the text of a compiled module, compiled.as_text()")


class RateError(CFPError, LookupError):
    """A chip's description lacks what a program needs."""

    def __init__(self, kind: str, element_type: str, known: tuple[str, ...]) -> None:
        self._given = (kind, element_type, known)
        super().__init__(
            f"the {kind} has no flops_per_s of {element_type}, which the program multiplies; it has "
            f"{', '.join(known) or 'none'}. Add it to the chip's description"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (RateError, self._given)


class ScheduleError(CFPError, ValueError):
    """A schedule waits for what it has not started, or has what cannot be timed."""

    @classmethod
    def not_started(cls, name: str) -> "ScheduleError":
        """A done has no start."""
        return cls(f"the scheduled program waits for {name}, which it has not started: the text is not a whole module")

    @classmethod
    def not_timed(cls, name: str, opcode: str) -> "ScheduleError":
        """An instruction whose seconds depend on what is outside of the program."""
        return cls(
            f"the scheduled program has {name}, a {opcode}, whose seconds depend on what is outside of the program. "
            "Leave host callbacks and transfers out of the step that is planned"
        )
