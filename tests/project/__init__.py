"""Tests of the repository: its architecture, packages, units, benchmarks, and the tests themselves."""
