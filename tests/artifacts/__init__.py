"""Tests of gitboot.artifacts."""
