"""Tests of gitboot.render."""
