"""CFP for users of plain `jax.jit`: `autoshard` plans a function for a `jax.sharding.Mesh`, `Plan.jit` runs it.

The modules in the order in which they run: `meshes` (the plan request), `tracing` (function to module), `unrolling`
(its loops; `plannable` decides which, `carried` where barriers separate their steps), `autoshard`, `planned_function`
(`Plan.jit`).
"""
