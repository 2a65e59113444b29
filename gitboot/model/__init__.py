"""Model: the fields of the eight kinds of documents, the valid values, and the JSON Schema."""
