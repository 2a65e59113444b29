"""Check, download and sign for kernels, images and boot loaders, in files, web servers and OCI registries."""
