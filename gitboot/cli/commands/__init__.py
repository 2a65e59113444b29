"""gitboot/cli/commands."""
