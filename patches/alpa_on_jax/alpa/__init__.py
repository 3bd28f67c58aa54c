"""One file for each alpa module of which names are replaced: `apply(module)` runs when that module has executed."""
