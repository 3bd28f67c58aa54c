"""Compiling a program for devices, running it, and reading the compiled program."""
