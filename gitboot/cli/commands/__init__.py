"""Define the commands, one module for a command or for a group of related commands."""
