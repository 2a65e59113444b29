"""Publication: write the output tree with its index, manifest and signed list, and compare mirrors with the tree."""
