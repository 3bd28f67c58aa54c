"""Replacements in `alpa.util`."""


def apply(module):
    return
