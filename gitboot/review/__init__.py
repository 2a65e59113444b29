"""Reviews: the changes between two commits, the guards that can hold a commit, and the progress of rollouts."""
