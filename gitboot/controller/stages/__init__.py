"""The stages of a reconcile: functions that take the state of the instance and return its next state."""
