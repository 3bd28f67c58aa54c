"""The plan: data, its text, its cache."""
