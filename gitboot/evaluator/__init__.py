"""Evaluation of commits in a process with limits, with cached results for unchanged servers and files."""
