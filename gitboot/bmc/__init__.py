"""BMCs: read and set boot overrides, power and virtual media over Redfish or IPMI."""
