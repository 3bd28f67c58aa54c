"""What a plan decided, why, and what it costs: an account that is kept with the plan, as text, JSON and HTML."""
