"""Fetch log: store what machines fetched from endpoints and mirrors until the controller reads it."""
