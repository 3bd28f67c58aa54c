"""Strategies: which factor of a block each mesh axis splits, and how state is sharded."""
