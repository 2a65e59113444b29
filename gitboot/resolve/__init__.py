"""Decisions and plans: what each server may boot according to a commit, and what it boots at a given time."""
