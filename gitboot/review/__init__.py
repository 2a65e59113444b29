"""Compare the decisions of commits: changes, guards, reinstalls, rollout steps and their review."""

from gitboot.review.review import Review, ReviewOutcome, review

__all__ = ["Review", "ReviewOutcome", "review"]
