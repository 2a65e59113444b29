"""Tests of gitboot.endpoint."""
