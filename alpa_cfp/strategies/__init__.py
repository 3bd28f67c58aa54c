"""Strategies: the partition of each block, and the sharding of its state."""
