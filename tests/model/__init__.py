"""Tests of gitboot.model."""
