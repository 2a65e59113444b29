"""Fleet: reads the files of a commit into a valid fleet, or reports every problem with its file and line."""
