"""Define conditions, events and progress, which controller, endpoint and commands share."""
