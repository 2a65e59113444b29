"""State of released versions on disk, and the script that made it."""
