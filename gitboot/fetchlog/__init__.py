"""Fetch log: stores the fetches of machines from endpoints and mirrors until the controller reads them."""
