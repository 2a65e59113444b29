"""gitboot/importers."""
