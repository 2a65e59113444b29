"""Fetch log: store the fetches by machines from endpoints and mirrors until the controller reads them."""
