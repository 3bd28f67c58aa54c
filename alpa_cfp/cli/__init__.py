"""The command line `alpa-cfp`: `main`, and a module for each command."""
