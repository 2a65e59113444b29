"""Artifacts: availability checks, downloads and signatures of kernels, images and boot loaders."""
