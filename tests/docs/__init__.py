"""Tests that run what pages of docs/ describe."""
