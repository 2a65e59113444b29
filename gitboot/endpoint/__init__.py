"""Answer machines and operators over HTTP: boot files, one-time boots, API and metrics."""
