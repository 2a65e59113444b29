"""The modules and functions that gitboot calls in three flows, in all of its processes: `make flows`."""
