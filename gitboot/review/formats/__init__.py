"""Write a review as text for people, JSON or Markdown."""
