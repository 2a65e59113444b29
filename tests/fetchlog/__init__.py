"""Tests of gitboot.fetchlog."""
