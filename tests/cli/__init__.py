"""Tests of gitboot.cli."""
