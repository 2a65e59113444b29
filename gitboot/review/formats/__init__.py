"""gitboot/review/formats."""
