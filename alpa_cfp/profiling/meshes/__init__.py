"""The meshes of a cluster on which programs are measured: where they are, and how they are used, lost and made anew.

`hosts` measures on one mesh of several hosts, which `ray_hosts` gives as Ray has them; `pool` measures on several at
once, of which `slots` and `ray_slots` find the free ones. `submeshes` does that for a mesh that is only planned for.
"""
