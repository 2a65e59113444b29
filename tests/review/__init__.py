"""Tests of gitboot.review."""
