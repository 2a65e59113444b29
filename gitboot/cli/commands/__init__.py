"""The commands of gitboot. Each module contains one command or one group of commands."""
