"""Tests of gitboot.controller."""
