"""Render plans to boot files, and the fleet to DHCP configuration, web-server configuration and the page."""
