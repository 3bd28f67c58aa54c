"""Replacements in the modules of `alpa.pipeline_parallel`."""
