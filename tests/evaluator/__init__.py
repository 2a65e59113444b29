"""Tests of gitboot.evaluator."""
