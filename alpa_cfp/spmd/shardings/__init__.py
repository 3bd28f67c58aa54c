"""Shardings of arrays on a logical mesh, and how ops pass them on."""
