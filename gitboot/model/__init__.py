"""Declare the seven kinds of documents: their fields, the values that are valid, and their JSON Schema."""
