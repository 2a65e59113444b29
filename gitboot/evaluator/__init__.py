"""Evaluation of commits in a resource-limited process that reuses cached results for unchanged servers and files."""
