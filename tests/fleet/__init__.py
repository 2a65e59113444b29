"""Tests of gitboot.fleet."""
