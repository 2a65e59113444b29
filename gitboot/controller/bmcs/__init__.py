"""BMC tasks: which BMCs need a task, when the tasks run, and in which order."""
