"""JAX processes of several hosts that make up one mesh."""
