"""gitboot/status."""
