"""Replacements in the modules of `alpa.model`."""
