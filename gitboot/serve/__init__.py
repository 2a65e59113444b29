"""The endpoint: boot files, their drop-in paths, the operators' API and metrics, over HTTP."""
