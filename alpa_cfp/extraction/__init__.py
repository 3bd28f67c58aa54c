"""Extraction: blocks and segments of a program as programs of their own."""
