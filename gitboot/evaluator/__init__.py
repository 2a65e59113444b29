"""Evaluation of commits in a process with resource limits, which reuses cached results."""
