"""Build an instance from its settings and its state directory, or wait as a standby."""
