"""Measuring on the meshes of a cluster: which meshes there are, how they are used, lost and made anew.

`hosts` measures on one mesh of several hosts; `pool` measures on several meshes at once, whose `slots` are the free
submeshes of a cluster. `machines` keeps timings on one machine apart, and `losses` finds the programs that end meshes.
"""
