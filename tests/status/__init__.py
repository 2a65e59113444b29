"""Tests of gitboot.status."""
