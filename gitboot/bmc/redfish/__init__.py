"""Redfish: the connection to one BMC, its resources, and the differences between vendors."""
