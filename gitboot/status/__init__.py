"""Define the conditions, events, status and progress that the controller, endpoints and commands share."""
