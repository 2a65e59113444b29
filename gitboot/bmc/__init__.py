"""Boot overrides, set and withdrawn through Redfish: one BMC at a time, and many."""
