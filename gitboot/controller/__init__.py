"""Controller: run one instance, which accepts commits, evaluates fetches, plans, publishes files and sets BMCs."""
