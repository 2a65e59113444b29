"""The commands of gitboot, in one module for each command or group of commands."""
