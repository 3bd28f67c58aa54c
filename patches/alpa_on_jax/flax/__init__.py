"""Completes `flax`."""
