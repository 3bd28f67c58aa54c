"""Meshes of several hosts, whose processes Ray starts and ends: what alpa's `DeviceCluster` and its meshes stand on.

A host process is a Ray actor that owns this node's part of the mesh's devices, and the processes of a mesh are joined
by JAX's distributed runtime, whose service lives in the driver. The driver has no device of the mesh: it lowers,
partitions and sends programs, and knows arrays by number.

Each folder uses those before it alone: `cluster` (which Ray cluster, which nodes), `asking` (hosts, and their answers),
`transport` (arrays from process to process), `failures` (time limits, waits that end, ending), `resharding` (tiles from
mesh to mesh), `processes` (launching hosts, and what a host compiles, runs and keeps). How processes join, and compile
and run together, is `alpa_cfp.spmd.distributed`. Alpa's functions that call these are replaced in
`alpa_on_jax/alpa/distributed_mesh.py`.

Invariant: nothing here imports Ray while it is imported, but `processes.ray_host`, which only `processes.launching`
imports.
"""
