"""Read and set boot overrides, power and virtual media of BMCs, over Redfish or IPMI."""
