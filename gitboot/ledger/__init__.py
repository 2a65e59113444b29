"""Ledger: stores provisioning records, overrides, approvals and events durably, in SQLite or PostgreSQL."""
