"""Fetch, read, verify and write Git repositories."""
