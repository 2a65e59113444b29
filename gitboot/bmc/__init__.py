"""BMC access: read and change boot overrides, power states and virtual media over Redfish or IPMI."""
