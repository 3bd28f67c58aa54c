"""The compiler core: programs, their shardings, partitioning and compiling, on jax and jaxlib alone."""
