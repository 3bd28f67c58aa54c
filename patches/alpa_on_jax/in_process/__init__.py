"""Pipelines without Ray: each mesh is a thread of this process with some of its devices.

For tests, laptops and debugging. The hosts do what those of a Ray cluster do (`ray_mesh.processes.host_worker`), and
send each other tiles through the same transport; `ray_mesh.remote_calls` calls threads like Ray actors.
"""
