"""Bring fetches of machines to the controller, from endpoints and from access logs of mirrors."""
