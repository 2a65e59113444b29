"""Keep copies of the output tree in branches, buckets and folders up to date."""
