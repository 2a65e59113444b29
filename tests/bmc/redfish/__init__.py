"""Tests of gitboot.bmc.redfish."""
