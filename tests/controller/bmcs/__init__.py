"""Tests of gitboot.controller.bmcs."""
