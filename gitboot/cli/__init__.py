"""Command line: options and configuration file, the commands, and their output."""
