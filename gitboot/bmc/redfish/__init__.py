"""gitboot/bmc/redfish."""
