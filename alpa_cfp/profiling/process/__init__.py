"""The worker process, in which programs are measured, and its supervisor.

A `supervisor` starts a `worker` and watches it; their messages are in `protocol`. On a mesh of several hosts each host
has both. A `group` of programs is measured in two `phases`: all are compiled, then timed interleaved.
"""
