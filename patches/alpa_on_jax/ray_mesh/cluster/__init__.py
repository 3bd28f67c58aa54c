"""The Ray cluster that `alpa.init` joins, the nodes that become hosts, and how they are held."""
