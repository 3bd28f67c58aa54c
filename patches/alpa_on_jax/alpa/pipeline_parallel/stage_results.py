"""Replacements in `alpa.pipeline_parallel.stage_profiling` of what reads results, and a check of what they come to.

Takes the results of candidate stages, from a file or measured; gives alpa's tables of costs, to a microsecond, and ends
with a reason where no choice of stages can follow from them: alpa's dynamic programme would end in a bare assertion.

Invariant: a result is used for the stage that it was measured for. Alpa tells variables apart by what `repr` says,
which once was a name and is an address today: so results from a file get the names of this process, by their places.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from alpa_on_jax import data_pickles, errors
from alpa_on_jax.alpa.pipeline_parallel.stage_run import StageRun, current, name_of
from alpa_on_jax.replacing import replace

# A bit more than `gap` in alpa's `training_dp` and `training_dp_2`.
_TOLD_APART_S = 1.001e-6


def apply(module: ModuleType) -> None:
    """Replace how results are read; look at the tables that alpa makes of them."""
    merge = module.merge_marked_jaxprs_with_named_call

    def check_profile_results_consistent(stages: Sequence[Any], profile_results: dict[Any, Any]) -> None:
        """Hold that results that were read from a file are those of these stages, and name their variables as here.

        Raises:
            errors.StageOptionError: they are not.
        """
        with current() as run:
            for stage in stages:
                result = profile_results.get(stage[0])
                if result is not None and not _take_names(result, stage[1]):
                    raise errors.StageOptionError.other_cached(run.cached, name_of(stage))

    def merge_marked_jaxprs_with_named_call(*args: Any, **options: Any) -> Any:
        """As alpa's own; the variables of what it gives are kept."""
        merged = merge(*args, **options)
        with current() as run:
            run.variables.append((merged.jaxpr.invars, merged.jaxpr.outvars))
        return merged

    replace(
        module,
        check_profile_results_consistent,
        merge_marked_jaxprs_with_named_call,
        pickle=SimpleNamespace(load=data_pickles.load),
        **{
            name: _looked_at(getattr(module, name), module.get_merged_stages_memory_stats)
            for name in (
                "interpret_profile_result_training_1d",
                "interpret_profile_result_training_2d",
                "interpret_profile_result_inference_1d",
                "interpret_profile_result_inference_2d",
            )
        },
    )


def _take_names(result: Any, stage: Any) -> bool:
    """Name the variables of a result as those of a stage; whether it can be this stage's."""
    parts, configs = result.module_profile_results, stage.module_profile_configs
    if result.n_modules != stage.n_modules or len(parts) != len(configs):
        return False
    for number, (part, config) in enumerate(zip(parts, configs, strict=True)):
        if part is None:
            continue
        if tuple(part.donated_invars) != tuple(config.donated_invars):
            return False
        if not _can_be_parts(part.invar_sizes, config.invar_avals):
            return False
        if not _can_be_parts(part.outvar_sizes, config.outvar_avals):
            return False
        parts[number] = part._replace(invar_names=config.invar_names, outvar_names=config.outvar_names)
    if result.initial_var_names:
        kept = () if stage.apply_grad_config is None else stage.apply_grad_config.apply_grad_only_invars
        if not _can_be_parts(result.initial_var_sizes, [variable.aval for variable in kept]):
            return False
        result.initial_var_names = tuple(repr(variable) for variable in kept)
    return True


def _can_be_parts(sizes: Sequence[int], arrays: Sequence[Any]) -> bool:
    """Whether these can be the bytes of one device's parts of these arrays."""
    whole = [array.size * array.dtype.itemsize for array in arrays]
    return len(sizes) == len(whole) and all(0 <= part <= all_ for part, all_ in zip(sizes, whole, strict=True))


def _looked_at(original: Callable[..., Any], memory_of: Callable[..., Any]) -> Callable[..., Any]:
    """An `interpret_profile_result_*` of alpa, and whether there is a way through its table."""

    def interpret(results: dict[Any, Any], num_layers: int, num_shapes: int, num_configs: int) -> tuple[Any, Any]:
        """See alpa.

        Raises:
            errors.NoStagesError: no choice of stages follows.
        """
        costs, second = original(results, num_layers, num_shapes, num_configs)
        with current() as run:
            run.end_workers()
            # What comes second is how many stages may follow, or, for inference, memory that alpa does not look at.
            is_training = "training" in original.__name__
            followers = second if is_training else np.full(costs.shape, num_layers)
            if run.num_devices and not has_stages(costs, followers, run.shapes, run.num_devices):
                memory = functools.partial(memory_of, inference_mode=not is_training)
                too_large = (np.isfinite(costs) & (followers < 0)) if is_training else ~np.isfinite(costs)
                reasons = _reasons(run, costs, list(_too_large(np.argwhere(too_large), run.shapes, results, memory)))
                raise errors.NoStagesError.of(num_layers, run.num_devices, run.shapes, reasons)
        return (told_apart(costs) if is_training else costs), second

    interpret.__name__ = original.__name__
    return interpret


def told_apart(costs: np.ndarray) -> np.ndarray:
    """Costs, in seconds, rounded up so that any two are equal or as far apart as alpa's programme demands.

    It goes through the costs as limits for the largest stage, and leaves out one that is less than 1e-6 s above the
    last: were it the largest cost of the only choice there is, no choice would be found.
    """
    return np.maximum(np.ceil(costs / _TOLD_APART_S), 1) * _TOLD_APART_S


def has_stages(costs: np.ndarray, followers: np.ndarray, shapes: Sequence[tuple[int, int]], num_devices: int) -> bool:
    """Whether all layers can be put on all devices, in stages of finite cost.

    Args:
        costs: Of the stage of layers i to j on the s-th shape with the c-th option: [i, j, s, c].
        followers: How many stages may come after it.
        shapes: Hosts, and devices of each, of a stage's submesh.
        num_devices: All of them are used.
    """
    num_layers = len(costs)
    # By the first layer that the stages so far cover, from the last one on: how many devices they may use.
    covered: dict[int, set[int]] = {num_layers: {0}}
    for later in range(num_layers):
        usable = (np.isfinite(costs) & (followers >= later)).any(axis=-1)
        reached: dict[int, set[int]] = {}
        for first, last, shape in np.argwhere(usable).tolist():
            devices = shapes[shape][0] * shapes[shape][1]
            used = {before + devices for before in covered.get(last + 1, ()) if before + devices <= num_devices}
            reached.setdefault(first, set()).update(used)
        covered = reached
        if num_devices in covered.get(0, ()):
            return True
    return False


def _too_large(
    indices: Any, shapes: Sequence[tuple[int, int]], results: dict[Any, Any], memory_of: Callable[..., Any]
) -> Iterator[tuple[int, int, str]]:
    """The bytes that measured stages need, those that a device has, and which stages they are."""
    for first, last, shape, config in indices.tolist():
        whole = [(first, last, shape, config)]
        layers = [(layer, shape, config) for layer in range(first, last + 1)]
        for parts in (whole, layers):
            if first <= last and all(index in results for index in parts):
                available, peak, initial, kept, _ = memory_of([results[index] for index in parts])
                hosts, devices = shapes[shape]
                needed = int(peak + initial + (kept or 0))
                yield needed, int(available), f"layers {first} to {last} on {hosts} x {devices} devices"


def _reasons(run: StageRun, costs: np.ndarray, too_large: Sequence[tuple[int, int, str]]) -> list[str]:
    """Why there is no choice of stages."""
    no_limit = np.full(costs.shape, len(costs))
    reasons = []
    if run.lost:
        name, reason = next(iter(run.lost.items()))
        reasons.append(errors.NoStagesError.lost(len(run.lost), name, reason))
    if too_large:
        needed, available, name = min(too_large)
        reasons.append(errors.NoStagesError.memory(len(too_large), name, needed, available))
    elif has_stages(costs, no_limit, run.shapes, run.num_devices):
        reasons.append(errors.NoStagesError.IN_FLIGHT)
    if not has_stages(np.zeros(costs.shape), no_limit, run.shapes, run.num_devices):
        reasons.append(errors.NoStagesError.SHAPES)
    if np.isfinite(run.imbalance):
        reasons.append(errors.NoStagesError.imbalance(run.imbalance))
    return reasons or [errors.NoStagesError.NO_CANDIDATES]
