"""Decide what each server boots by a commit, and plan what the server boots at a given time."""
