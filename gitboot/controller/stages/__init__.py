"""The stages of a reconcile. Each is a function that takes the instance state and returns the next instance state."""
