"""Tests that do what pages of docs/ say."""
