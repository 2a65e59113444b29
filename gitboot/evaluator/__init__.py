"""Evaluation of commits in a process with resource limits. The process reuses cached results for unchanged servers."""
