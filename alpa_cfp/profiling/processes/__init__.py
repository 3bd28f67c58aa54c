"""Measuring with the processes of a `jax.distributed` program, of which one plans.

`joining` finds the processes of a mesh, `peers` are the connections between them, `hosts` are the processes as hosts of
a mesh (`profiling.meshes`), and `serving` is what all but the first one do meanwhile.
"""
