"""gitboot/controller/instance."""
