"""Decisions and plans: what a commit decides for each server, and what a server boots at a given time."""
