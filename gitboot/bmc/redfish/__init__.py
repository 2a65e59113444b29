"""Speak Redfish with a BMC: connections, resources and the quirks of vendors."""
