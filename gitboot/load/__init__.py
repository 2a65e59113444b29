"""Blobs of a commit -> the fleet repository as typed values, or every problem of the commit.

A `snapshot` is listed (`listing`), and each of its files is read (`blobs`, by `documents`). `loaded` checks all files
together. If a check fails, it gathers them in a `draft`, and `checks` finds each problem, which `remarks` place.
A valid revision is a `repository`.
"""
