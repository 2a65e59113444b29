"""gitboot/endpoint."""
