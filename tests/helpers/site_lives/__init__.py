"""A whole site through commits, faults, kills and hand-overs."""
