"""Write and check the output tree, its index, manifest and signed list, and compare mirrors with it."""
