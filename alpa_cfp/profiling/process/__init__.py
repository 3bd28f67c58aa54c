"""One process in which programs are measured, and who asks it.

`isolated` starts such a process and watches it, `worker` is what runs there, and they say to each other what `protocol`
has. On a mesh of several hosts a `supervisor` on each has one. A group is measured in `phases`: programs are compiled
(`compiling`), then run interleaved (`group`). `here` does the same in the process that asks.
"""
