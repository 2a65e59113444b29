"""gitboot/controller/learn."""
