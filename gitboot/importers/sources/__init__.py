"""Sources of imports: one module for each data format of another provisioning system."""
