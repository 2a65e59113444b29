"""Instance: the assembly of an instance from its settings and state directory, and the standby mode."""
