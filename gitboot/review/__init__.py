"""What a reviewer sees of a commit: cause and effect, verdict, rendered diffs; as values, JSON and Markdown."""

from gitboot.review.review import Review, ReviewOutcome, review

__all__ = ["Review", "ReviewOutcome", "review"]
