"""The commands of gitboot, with one module for each command or group of commands."""
