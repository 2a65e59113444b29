"""Model: the eight kinds of documents, with their fields, the valid values, and the JSON Schema."""
