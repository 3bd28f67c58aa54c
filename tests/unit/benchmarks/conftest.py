"""Benchmarks are no part of the distribution: they are imported from the tree, and all else as it is installed."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3]))
