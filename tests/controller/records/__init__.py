"""Tests of gitboot.controller.records."""
