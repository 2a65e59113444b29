"""Tests of gitboot.importers."""
