"""The stages of a reconcile. Each stage takes the state of the instance and returns the next state."""
