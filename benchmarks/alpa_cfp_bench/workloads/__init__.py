"""The workloads of benchmarks and tests: models of several kinds, their batches, sizes and hand-written shardings."""
