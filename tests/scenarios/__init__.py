"""Tests of whole programs, and of several packages at once."""
