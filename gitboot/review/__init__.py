"""Compare commits: what changes for which server, which guards hold it, and what a rollout does next."""

from gitboot.review.review import Review, ReviewOutcome, review

__all__ = ["Review", "ReviewOutcome", "review"]
