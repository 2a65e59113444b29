"""Fleet: read the files of a commit, and return a valid fleet or all problems with their files and lines."""
