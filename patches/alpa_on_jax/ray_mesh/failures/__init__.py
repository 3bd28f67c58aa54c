"""Time limits, waits that end, errors that nobody waited for, and how a mesh that is lost ends."""
