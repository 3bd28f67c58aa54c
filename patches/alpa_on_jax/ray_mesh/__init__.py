"""Meshes of several hosts, whose processes Ray starts and ends: what alpa's `DeviceCluster` and its meshes stand on.

A host process is a Ray actor that owns this node's part of the mesh's devices, and the processes of a mesh are joined
by JAX's distributed runtime, whose service lives in the driver. The driver has no device of the mesh: it lowers,
partitions and sends programs, and knows arrays by number.

In the order in which they are used: `attaching` (to which Ray cluster), `hosts` (which of its nodes, held how),
`launching` and `ending` (of the processes of a mesh), `host_worker` (what a host process compiles, runs and keeps). How
processes join, and compile and run together, is `alpa_cfp.spmd.distributed`. `limits` has how long the driver waits for
each. What of alpa calls them is replaced in `alpa_on_jax/alpa/distributed_mesh.py`.

Invariant: nothing here imports Ray while it is imported, but `host_worker`, which only `launching` imports.
"""
