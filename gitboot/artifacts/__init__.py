"""Artifacts such as kernels, images and boot loaders: check, download, mirror and verify them."""
