"""Assemble an instance from its settings and its state directory, and wait as a standby."""
