"""gitboot/fetchlog."""
