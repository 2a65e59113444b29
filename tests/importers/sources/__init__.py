"""Tests of gitboot.importers.sources."""
