"""What released versions left on disk, and the scripts that made it."""
