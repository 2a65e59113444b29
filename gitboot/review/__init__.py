"""What a reviewer sees of a commit: cause and effect, verdict, rendered diffs; as values, JSON and Markdown."""

from gitboot.review.review import Outcome, Review, review

__all__ = ["Outcome", "Review", "review"]
