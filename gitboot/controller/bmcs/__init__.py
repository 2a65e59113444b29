"""BMC tasks: which BMCs get a task, when, and in which order."""
