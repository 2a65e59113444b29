"""Ledger: durable storage for provisioning records, overrides, approvals and events, in SQLite or PostgreSQL."""
