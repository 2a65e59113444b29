"""Tests of gitboot.controller.learn."""
