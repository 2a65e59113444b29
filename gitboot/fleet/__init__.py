"""gitboot/fleet."""
