"""Evaluate commits in a process with limits, and reuse cached results of what did not change."""
