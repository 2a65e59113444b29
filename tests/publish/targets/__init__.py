"""Tests of gitboot.publish.targets."""
