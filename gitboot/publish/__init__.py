"""Where files go: one module a target."""
