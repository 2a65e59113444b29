"""gitboot/artifacts."""
