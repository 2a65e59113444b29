"""Targets: copies of the output tree in Git branches, S3 buckets, folders and on other hosts."""
