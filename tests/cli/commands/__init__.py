"""Tests of gitboot.cli.commands."""
