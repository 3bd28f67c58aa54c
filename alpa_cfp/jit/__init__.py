"""CFP for users of plain `jax.jit`: `autoshard` plans a function for a `jax.sharding.Mesh`, `Plan.jit` runs it.

The way of a function: `unrolling` (its loops; `plannable` says which, `carried` where their steps are kept apart),
`tracing` (to a module), `meshes` (what the planner is asked), `autoshard`, `planned_function` (`Plan.jit`).
"""
