"""Replacements in the modules of `alpa.shard_parallel`."""
