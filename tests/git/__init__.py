"""Tests of gitboot.git."""
