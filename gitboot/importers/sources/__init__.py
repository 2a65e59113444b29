"""Read the data of other provisioning systems, one module for each format."""
