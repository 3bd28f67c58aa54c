"""MLIR: parsing, building and small rewrites of StableHLO."""
