"""Write a review as text, JSON or Markdown."""
