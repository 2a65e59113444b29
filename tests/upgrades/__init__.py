"""What released versions left on disk, and the script that made it."""
