"""Endpoint: serve boot files, one-time boots, the API and metrics to machines and operators over HTTP."""
