"""Read the data of other systems, one module for a format."""
