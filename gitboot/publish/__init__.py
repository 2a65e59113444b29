"""Publication: writes the output tree with its index, manifest and signed list, and compares mirrors with the tree."""
