"""Artifacts: check, download, mirror and verify kernels, images and boot loaders."""
