"""One server through commits, boots, faults, crashes and restarts."""
