"""gitboot/controller/bmcs."""
