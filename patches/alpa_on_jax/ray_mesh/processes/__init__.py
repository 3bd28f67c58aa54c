"""Host processes: how they start, what each does for its mesh, and pools of workers that are replaced when lost."""
