"""Tests of gitboot.resolve."""
