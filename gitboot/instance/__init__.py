"""One running instance: what it accepts, knows, publishes and asks of BMCs."""
