"""BMC tasks: which BMCs need a task, and when and in which order the tasks run."""
