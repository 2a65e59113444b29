"""Reviews: the changes between two commits, the guards that hold commits, and the progress of rollouts."""
