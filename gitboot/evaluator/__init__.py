"""Evaluate commits in a process with limits, and reuse cached results of unchanged servers and files."""
