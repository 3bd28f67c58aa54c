"""Replacements in `alpa.pipeline_parallel.computation`: cutting at layer markers, order of results, running stages."""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax
from jax._src import core, source_info_util

from alpa_cfp.spmd.compile.executable import Client, MeshExecutable
from alpa_cfp.spmd.propagation import propagate
from alpa_cfp.spmd.shardings.sharding import LogicalMesh
from alpa_on_jax import errors
from alpa_on_jax.replacing import replace, replace_in_class


def apply(module: ModuleType) -> None:
    """Replace how `LocalPipelineParallel` compiles a stage, and check for layers before a function is cut into them."""
    slice_at_markers = module.slice_closed_jaxpr_by_full_pipeline_marks

    def slice_closed_jaxpr_by_full_pipeline_marks(closed_jaxpr: Any) -> Any:
        """The layers of a jaxpr, as alpa's own cuts it.

        Raises:
            errors.LayerMarkerError: an operation is in no layer.
        """
        inside = False
        for eqn in closed_jaxpr.jaxpr.eqns:
            mark = eqn.params["mark_type"] if eqn.primitive is module.pipeline_p else None
            if mark != "start" and not inside:
                raise errors.LayerMarkerError(eqn.primitive.name, source_info_util.summarize(eqn.source_info))
            inside = mark != "end"
        return slice_at_markers(closed_jaxpr)

    def outvars_def_order(self: Any) -> list[core.Var]:
        """The results of a stage in the order in which it computes them.

        Alpa's takes for granted that no value is two results. One is where a layer both hands it to the next and needs
        it in its own backward pass.
        """
        *computed, end = self.eqns
        position = {var: number for number, eqn in enumerate(computed) for var in eqn.outvars}

        def when(inner: core.Atom) -> int:
            return -1 if isinstance(inner, core.Literal) else position.get(inner, -1)

        results = sorted(zip(end.invars, end.outvars, strict=True), key=lambda result: when(result[0]))
        return [outer for _, outer in results]

    def get_runnable(self: Any, mesh: Any = None) -> Callable[..., list[jax.Array]]:
        """A function that runs the stage on the first device; stages that were compiled already are not again."""
        compiled = self.__dict__.get("_compiled")
        if compiled is None:
            device = jax.local_devices()[0]
            program = self.hlo.get_module()
            propagate(program, LogicalMesh((1, 1)), to_outputs=True)
            compiled = (device, MeshExecutable(Client([device], module.global_config.runtime_random_seed), program))
            self.__dict__["_compiled"] = compiled
        device, executable = compiled

        def run(*args: Any) -> list[jax.Array]:
            return executable.execute_sharded_on_local_devices(jax.device_put(list(args), device))

        return run

    replace(module, slice_closed_jaxpr_by_full_pipeline_marks)
    replace_in_class(module.JaxPipelineComputation, outvars_def_order)
    replace_in_class(module.XlaPipelineComputation, get_runnable)
