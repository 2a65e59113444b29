"""Tests of gitboot.ledger."""
