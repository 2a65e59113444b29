"""Tests of gitboot.controller.instance."""
