"""The program value: StableHLO with the shardings of its boundary, and what partitioning makes of it."""
