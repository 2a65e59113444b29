"""Tests of gitboot.review.formats."""
