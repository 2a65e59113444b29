"""Compare commits: what changes for which server, which guards hold it, and what a rollout does next."""
