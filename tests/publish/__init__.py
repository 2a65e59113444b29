"""Tests of gitboot.publish."""
