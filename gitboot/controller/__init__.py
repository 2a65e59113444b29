"""Controller: runs one instance, which accepts commits, processes fetches, publishes boots and sets overrides."""
