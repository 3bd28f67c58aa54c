"""Meshes of several hosts, whose processes Ray starts and ends: what alpa's `DeviceCluster` and its meshes stand on.

A host process is a Ray actor that owns this node's part of the mesh's devices, and the processes of a mesh are joined
by JAX's distributed runtime, whose service lives in the driver. The driver has no device of the mesh: it lowers,
partitions and sends programs, and knows arrays by number.

Each folder uses only those before it: `cluster` (the Ray cluster and its nodes), `remote_calls` (method calls on
hosts), `transport` (arrays between processes), `failures` (time limits, bounded waits, ending), `resharding` (tiles
between meshes), `processes` (launching hosts; compiling, running and storing arrays on a host). Joining the processes,
and compiling and running on all of them, is in `alpa_cfp.spmd.distributed`. Alpa's functions that call these are
replaced in `alpa_on_jax/alpa/distributed_mesh.py`.

Invariant: nothing here imports Ray while it is imported, but `processes.ray_host`, which only `processes.launching`
imports.
"""
