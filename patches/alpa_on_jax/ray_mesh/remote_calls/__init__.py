"""Remote method calls on hosts and their results: for Ray actors, and for threads of this process in their place."""
