"""Replacements in `alpa.pipeline_parallel.runtime_emitter`: what the schedule `1f1b_overlap_friendly` sends when."""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from jax._src import core

from alpa_on_jax.replacing import replace_in_class


def apply(module: ModuleType) -> None:
    """Replace the method that Alpa 0.2.3 cannot run: it sorts by a function of three arguments, and prints."""
    emitter = module.OverlapFriendlyPipelineInstEmitter

    def _get_stage_send_vars(self: Any, outvar_def_order: Sequence[Sequence[core.Var]]) -> None:
        """Fill `stage_send_vars`: for each stage, (mesh, variables, their sharding specs there) in the order of sends.

        Args:
            outvar_def_order: For each stage its results, in the order in which it computes them.
        """
        self._compile_sharding_specs()
        for stage_idx, sends in enumerate(_sends(self)):
            order = {var: position for position, var in enumerate(outvar_def_order[stage_idx])}
            merged: list[tuple[int, list[core.Var], list[Any]]] = []
            for mesh_idx, var, spec in sorted(sends, key=lambda send: (order[send[1]], send[0])):
                if not merged or merged[-1][0] != mesh_idx:
                    merged.append((mesh_idx, [], []))
                merged[-1][1].append(var)
                merged[-1][2].append(spec)
            self.stage_send_vars[stage_idx] = merged

    replace_in_class(emitter, _get_stage_send_vars)


def _sends(emitter: Any) -> list[list[tuple[int, core.Var, Any]]]:
    """For each stage what it sends, of which mesh needs it: once to each mesh, by the first stage that has it."""
    sends: list[list[tuple[int, core.Var, Any]]] = [[] for _ in emitter.stages]
    first_with: dict[core.Var, int] = {}
    meshes_with: dict[core.Var, set[int]] = {}
    made_before: tuple[set[core.Var], Mapping[core.Var, core.Var]] = (
        set(emitter.global_invars),
        emitter.grad_dummy_invars,
    )
    for stage_idx, stage in enumerate(emitter.stages):
        (mesh_idx,) = emitter.schedule.stage_placement(stage_idx)
        for var, spec in zip(stage.invars, stage.input_sharding_specs, strict=True):
            if any(var in known for known in made_before) or mesh_idx in meshes_with[var]:
                continue
            meshes_with[var].add(mesh_idx)
            sends[first_with[var]].append((mesh_idx, var, spec))
        for var in stage.outvars:
            first_with.setdefault(var, stage_idx)
            meshes_with.setdefault(var, set()).add(mesh_idx)
    return sends
