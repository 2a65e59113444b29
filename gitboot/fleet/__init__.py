"""Read the files of a revision into a valid fleet, or report every problem with its place."""
