"""Render plans to boot files, and the fleet to DHCP and web-server configuration and a page."""
