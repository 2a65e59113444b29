"""Parse the command line and the configuration file, run commands, and print their results."""
