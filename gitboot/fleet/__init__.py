"""Fleet: turn the files of a commit into a valid fleet, or report every problem with its file and line."""
