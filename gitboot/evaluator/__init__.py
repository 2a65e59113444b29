"""Evaluate commits in a process of its own, by content keys."""
