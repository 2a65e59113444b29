"""Decide which BMCs the instance sets, when, and in which order."""
