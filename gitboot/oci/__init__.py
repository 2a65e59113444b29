"""Images that lie in OCI registries: what they are made of, and their files as streams."""
