"""Formats for reviews: JSON, Markdown, and the phrases that all formats share."""
