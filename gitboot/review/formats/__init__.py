"""Formats of a review: JSON, Markdown, and the sentences that all formats share."""
