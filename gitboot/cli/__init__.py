"""Turn arguments and configuration into calls, and results into output and exit codes."""
