"""Benchmarks: the cost of gitboot beside the least that the same work can cost, measured in one run."""
