"""gitboot/importers/sources."""
