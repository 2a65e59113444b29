"""Rendering of boot files, DHCP configuration, web-server configuration and the web page for operators."""
