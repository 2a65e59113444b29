"""One view over instances at several sites: what each says of itself, read and never written."""
