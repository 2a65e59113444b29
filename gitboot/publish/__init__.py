"""OUTPUT, the published tree: what changes in it, how files are written, its index, manifest and signed list."""
