"""What is benchmarked and tested: models of several kinds with their batches, sizes and hand-written shardings."""
