"""Shows plans, their reports and profiles as text, JSON and HTML."""
