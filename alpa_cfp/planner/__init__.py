"""The planner: plans a module for a mesh."""
