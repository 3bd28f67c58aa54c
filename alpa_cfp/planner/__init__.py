"""The planning pipeline: from an unoptimised module to the module with its plan."""
