"""Keep copies of the output tree up to date in Git branches, S3 buckets, folders and on other hosts."""
