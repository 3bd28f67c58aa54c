"""Plans and costs of pipeline stages, composed from profiles of their segments."""
