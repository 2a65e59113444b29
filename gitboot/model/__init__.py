"""Model: the fields of the seven kinds of documents, their valid values, and their JSON Schema."""
