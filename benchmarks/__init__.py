"""What gitboot costs, each figure beside the least that the same work can cost in the same run: `make bench`."""
