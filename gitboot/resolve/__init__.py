"""Decide what each server of a commit boots, and plan what it boots at a time."""
