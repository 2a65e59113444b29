"""Store records, overrides and events durably in SQLite or PostgreSQL."""
