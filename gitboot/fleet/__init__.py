"""Fleet: read the files of a commit, and return either a valid fleet or all problems with their files and lines."""
