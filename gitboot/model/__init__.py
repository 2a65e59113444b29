"""Model: the fields of the seven kinds of documents, the valid values, and the JSON Schema."""
