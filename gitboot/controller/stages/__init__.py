"""The stages of a reconcile: functions that take the instance state and return the next instance state."""
