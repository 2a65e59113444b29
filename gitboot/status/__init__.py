"""Status: the conditions, events and progress that the controller, endpoints and commands share."""
