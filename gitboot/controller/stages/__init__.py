"""The stages of a reconcile, in the order of `controller/reconcile`: each takes the state, and returns the next one."""
