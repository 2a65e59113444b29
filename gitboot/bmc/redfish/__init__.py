"""Read and change one BMC over Redfish: its connection, its resources, and the differences between vendors."""
