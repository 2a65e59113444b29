"""Fetch log: store machines' fetches from endpoints and mirrors until the controller reads them."""
