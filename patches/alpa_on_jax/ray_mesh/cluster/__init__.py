"""Which Ray cluster `alpa.init` goes to, which of its nodes are hosts, and how they are held."""
