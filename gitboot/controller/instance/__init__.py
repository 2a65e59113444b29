"""Set up an instance: settings, state directory, parts and standby."""
