"""gitboot/git."""
