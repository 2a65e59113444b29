"""What machines fetch besides their boot files: loaders that are placed, artifacts that are looked at and mirrored."""
