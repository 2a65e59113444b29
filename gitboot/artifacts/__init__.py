"""Check that kernels, images and boot loaders are there and unchanged, download them, and verify their signatures."""
