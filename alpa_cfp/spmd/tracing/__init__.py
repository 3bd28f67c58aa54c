"""Helpers for tracing JAX functions: kinds of random keys, callbacks into Python."""
