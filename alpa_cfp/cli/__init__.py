"""The command line `alpa-cfp`: a module for each command, and `main`, which knows them all."""
