"""Declare the seven kinds of documents: fields, scalars, selectors and JSON Schema."""
