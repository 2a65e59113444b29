"""Tests of gitboot.bmc."""
