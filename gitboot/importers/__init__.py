"""Import of a fleet from another provisioning system, and comparison of the boots that both systems serve."""
