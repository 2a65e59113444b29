"""Targets: copies of the output tree in Git branches, in S3 buckets, in folders and on other hosts."""
