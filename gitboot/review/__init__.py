"""Reviews: the changes between two commits, the guards that hold a commit, and the next step of a rollout."""
