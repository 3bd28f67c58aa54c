"""What tracing of JAX functions needs: kinds of random keys, callbacks into Python."""
