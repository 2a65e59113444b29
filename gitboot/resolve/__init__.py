"""Decisions and plans: what a commit allows each server to boot, and what the server boots at a given time."""
