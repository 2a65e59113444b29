"""Git: fetches, reads, verifies and writes repositories."""
