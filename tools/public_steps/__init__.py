"""Training steps of public repositories, a file each: how to get one from a checkout, tiny, with synthetic data.

The modules: `step` (what such a step is), `absent` (packages that only load data), `programs` (the list of them),
`comparing` (equality with `jax.jit`), `timing` (times in pairs), `running` (one program on one mesh). A program's own
file calls the repository's functions; nothing of a model or a step is written here.
"""
