"""gitboot/controller."""
