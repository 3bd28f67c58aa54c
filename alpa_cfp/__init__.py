"""CFP: Alpa's intra-operator pass, planned from profiled segments instead of a symbolic cost model."""

__version__ = "0.1.0"
